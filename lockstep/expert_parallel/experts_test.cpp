// SPDX-License-Identifier: Apache-2.0
#include "lockstep/expert_parallel/experts.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "lockstep/base/error.h"
#include "lockstep/expert_parallel/test_golden.h"

namespace lockstep::expert_parallel {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Groups {
  explicit Groups(at::ScalarType dtype) {
    rows = made({10, 8}, 1, 500, dtype).requires_grad_();
    for (int64_t i = 0; i < 4; ++i) {
      weights.push_back(made({16, 8}, 50 * i, 500, dtype).requires_grad_());
    }
  }
  at::Tensor by_loop() const {
    std::vector<at::Tensor> outputs;
    const std::vector<at::Tensor> parts = rows.split_with_sizes(counts);
    for (size_t i = 0; i < weights.size(); ++i) {
      outputs.push_back(at::linear(parts[i], weights[i]));
    }
    return at::cat(outputs);
  }
  std::vector<at::Tensor> gradients_of(const at::Tensor& output) const {
    std::vector<at::Tensor> inputs = weights;
    inputs.push_back(rows);
    const at::Tensor factors = made(output.sizes(), 9, 500);
    return torch::autograd::grad({(output * factors).sum()}, inputs);
  }
  at::Tensor rows;
  std::vector<at::Tensor> weights;
  std::vector<int64_t> counts{3, 0, 6, 1};
};

TEST(GroupedLinear, EqualsALoopAndGivesGroupsWithoutRowsZeroGradients) {
  for (const auto& [dtype, limit] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 0.05}}) {
    const Groups groups(dtype);
    ASSERT_TRUE(can_group(groups.rows, groups.weights[0]));
    const at::Tensor output = grouped_linear(groups.rows, groups.weights, groups.counts);
    EXPECT_EQ(output.scalar_type(), dtype);
    const at::Tensor expected = groups.by_loop();
    EXPECT_LT(difference(output, expected), limit);
    const auto got = groups.gradients_of(output);
    const auto wanted = groups.gradients_of(expected);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LT(difference(got[i], wanted[i]), limit) << i;
    }
    EXPECT_EQ(got[1].abs().max().item<double>(), 0);
  }
}

TEST(GroupedLinear, AcceptsNoRowsAtAllAndExpandedGradients) {
  Groups groups(at::kFloat);
  grouped_linear(groups.rows, groups.weights, groups.counts).sum().backward();
  EXPECT_LT(
      difference(groups.weights[0].grad()[5], groups.rows.detach().slice(0, 0, 3).sum(0)), 1e-6);

  const Groups fresh(at::kFloat);
  const at::Tensor none = grouped_linear(fresh.rows.slice(0, 0, 0), fresh.weights, {0, 0, 0, 0});
  EXPECT_EQ(none.size(0), 0);
  none.sum().backward();
  EXPECT_EQ(fresh.weights[3].grad().abs().max().item<float>(), 0);
}

TEST(GroupedLinear, ComputesInAutocastsDtypeAndKeepsTheWeightsOwn) {
  const Groups groups(at::kFloat);
  const bool before = at::autocast::is_autocast_enabled(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::Tensor output;
  at::Tensor expected;
  {
    const c10::impl::IncludeDispatchKeyGuard keys(c10::autocast_dispatch_keyset);
    output = grouped_linear(groups.rows, groups.weights, groups.counts);
    expected = groups.by_loop();
  }
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, before);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(expected.scalar_type(), at::kBFloat16);
  EXPECT_LT(difference(output, expected), 0.05);
  EXPECT_EQ(groups.gradients_of(output)[0].scalar_type(), at::kFloat);
}

TEST(GroupedLinear, IsUsedOnlyWhereTorchComputesIt) {
  const at::Tensor rows = at::zeros({2, 8});
  EXPECT_TRUE(can_group(rows, at::zeros({4, 8})));
  EXPECT_FALSE(can_group(rows.to(at::kDouble), at::zeros({4, 8}, at::kDouble)));
  EXPECT_FALSE(can_group(at::zeros({2, 6}), at::zeros({4, 6}))) << "24 bytes a row";
  EXPECT_FALSE(can_group(rows, at::zeros({5, 8}))) << "20 bytes a row";
  EXPECT_FALSE(can_group(rows, at::zeros({4, 8}, at::kBFloat16))) << "different dtypes";
}

TEST(GroupedLinear, RefusesGradientsOfGradients) {
  const Groups groups(at::kFloat);
  const at::Tensor output = grouped_linear(groups.rows, groups.weights, groups.counts);
  EXPECT_THAT(
      [&] { torch::autograd::grad({output.sum()}, {groups.rows}, {}, std::nullopt, true); },
      ThrowsMessage<ConfigError>(HasSubstr("set MoEOptions::grouped_mm to false")));
}

TEST(SwiGLU, HasMixtralsFormulaAndNames) {
  nn::SwiGLU expert(8, 16);
  const at::Tensor input = made({3, 8}, 1);
  const at::Tensor expected = at::linear(
      at::silu(at::linear(input, expert->w1->weight)) * at::linear(input, expert->w3->weight),
      expert->w2->weight);
  EXPECT_TRUE(expert(input).equal(expected));
  EXPECT_THAT(
      expert->named_parameters().keys(),
      ::testing::ElementsAre("w1.weight", "w2.weight", "w3.weight"));
  EXPECT_LT(difference(grouped_forward({expert, expert}, input, {1, 2}), expected), 1e-6);
}

}  // namespace
}  // namespace lockstep::expert_parallel
