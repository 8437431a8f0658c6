// SPDX-License-Identifier: Apache-2.0
// Against tests/golden/muon.json, which torch.optim's and DeepSpeed's Muon wrote.
#include "lockstep/optim/rules/muon.h"

#include <cmath>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/optim/state/momentum.h"
#include "lockstep/optim/test_parameters.h"

namespace lockstep::optim {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const json& muon_golden() {
  static const json all = [] {
    std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/muon.json");
    return json::parse(file);
  }();
  return all;
}

Parameters starting_parameters() {
  Parameters parameters;
  for (const json& shape : muon_golden()["shapes"]) {
    const auto first = 3 * static_cast<int64_t>(parameters.size());
    parameters.push_back(numbers(shape.get<std::vector<int64_t>>(), first, 5, 11, 4)
                             .to(at::kFloat)
                             .requires_grad_());
  }
  return parameters;
}

/// Steps with the gradients of the golden file.
void train_muon(Muon& optimizer, const Parameters& parameters) {
  for (int64_t t = 0; t < muon_golden()["steps"]; ++t) {
    for (size_t k = 0; k < parameters.size(); ++k) {
      const int64_t first = 13 * t + 29 * static_cast<int64_t>(k);
      parameters[k].mutable_grad() =
          (numbers(parameters[k].sizes(), first, 7, 18, 8) + 1.0 / 16).to(at::kFloat);
    }
    optimizer.step();
  }
}

struct MuonCase {
  const char* name;
  MuonOptions options;
  bool with_others;
  /// bf16 products differ between CPUs in their last bits, of which ten steps of 0.02 add up.
  double allowed;
};

void PrintTo(const MuonCase& item, std::ostream* out) {
  *out << item.name;
}

class MuonGolden : public ::testing::TestWithParam<MuonCase> {};

TEST_P(MuonGolden, EqualsPythonsFinalParameters) {
  const MuonCase& item = GetParam();
  const auto matrices = muon_golden()["matrices"].get<int64_t>();
  const Parameters all = starting_parameters();
  const Parameters hidden(all.begin(), all.begin() + matrices);
  std::vector<Muon::Group> groups = {{hidden, item.options}};
  if (item.with_others) {
    groups.push_back(
        {{all.begin() + matrices, all.end()},
         {.lr = 0.003, .weight_decay = 0.1, .use_muon = false}});
  }
  Muon optimizer(groups);
  train_muon(optimizer, all);
  const json& end = muon_golden()["cases"][item.name];
  for (size_t k = 0; k < all.size(); ++k) {
    const auto values = end[k].get<std::vector<double>>();
    const at::Tensor got = all[k].detach().to(at::kDouble).flatten();
    const double off = (got - at::tensor(values, at::kDouble)).abs().max().item<double>();
    EXPECT_LT(off, k < hidden.size() ? item.allowed : 2e-6) << "parameter " << k;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    MuonGolden,
    ::testing::Values(
        MuonCase{"DeepSpeedStandard", {.lr = 0.02}, true, 4e-3},
        MuonCase{"DeepSpeedGram", {.lr = 0.02, .gram = true}, true, 2e-5},
        MuonCase{"Torch", {.lr = 0.02}, false, 4e-3},
        MuonCase{
            "TorchAsAdamW",
            {.lr = 0.02, .weight_decay = 0.3, .momentum = 0.8, .match_rms_adamw = true},
            false,
            8e-3},
        MuonCase{"TorchPlainMomentum", {.lr = 0.02, .nesterov = false}, false, 4e-3}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(Muon, AStepIsNearlyOrthogonalForEveryShapeOfTheGradient) {
  for (const bool gram : {false, true}) {
    for (const auto& shape : {std::vector<int64_t>{40, 40}, {16, 90}, {90, 16}}) {
      const at::Tensor matrix = at::zeros(shape).requires_grad_();
      Muon optimizer({matrix}, {.lr = 1, .weight_decay = 0, .gram = gram});
      matrix.mutable_grad() = at::randn(shape) * 1e3;
      optimizer.step();
      const double scale =
          std::sqrt(std::max(1.0, static_cast<double>(shape[0]) / static_cast<double>(shape[1])));
      const at::Tensor singular = at::linalg_svdvals(matrix.detach() / scale);
      EXPECT_LT(singular.max().item<double>(), 1.3);
      EXPECT_GT(singular.median().item<double>(), 0.6);
    }
  }
}

TEST(Muon, TheKernelOfAConvolutionIsAMatrixOfOneRowAFilter) {
  for (const bool match_rms_adamw : {false, true}) {
    for (const auto& shape : {std::vector<int64_t>{8, 3, 5, 5}, {20, 1, 3, 3}}) {
      const at::Tensor kernel = at::zeros(shape).requires_grad_();
      kernel.mutable_grad() = numbers(shape, 1, 7, 18, 8).to(at::kFloat);
      const at::Tensor matrix = at::zeros_like(kernel).flatten(1).requires_grad_();
      matrix.mutable_grad() = kernel.grad().flatten(1);
      Muon convolution({kernel}, {.match_rms_adamw = match_rms_adamw, .gram = true});
      Muon plain({matrix}, {.match_rms_adamw = match_rms_adamw, .gram = true});
      convolution.step();
      plain.step();
      EXPECT_TRUE(at::allclose(kernel.flatten(1), matrix));
    }
  }
}

TEST(Muon, RefusesOtherShapesAndInvalidOptionsAtConstruction) {
  const at::Tensor bias = at::zeros({3}).requires_grad_();
  EXPECT_THAT(
      error_of([&] { Muon({bias}); }),
      HasSubstr("got a parameter of 1 dimensions, expected 2, or 4 of a convolution; put it into a "
                "group with use_muon = false"));
  const at::Tensor matrix = at::zeros({3, 3}).requires_grad_();
  EXPECT_THAT(error_of([&] { Muon({matrix}, {.momentum = 1}); }), HasSubstr("momentum"));
  EXPECT_THAT(error_of([&] { Muon({matrix}, {.eps = 0}); }), HasSubstr("eps"));
}

TEST(Muon, GroupsAreSplitByShapeAndName) {
  const auto trained = [](at::IntArrayRef shape) { return at::zeros(shape).requires_grad_(); };
  const NamedTensors model = {
      {"Embedding.weight", trained({10, 4})},
      {"block.weight", trained({4, 4})},
      {"block.bias", trained({4})},
      {"conv.weight", trained({4, 1, 3, 3})},
      {"conv1d.weight", trained({4, 1, 3})},
      {"frozen.weight", at::zeros({4, 4})},
      {"lm_head.weight", trained({10, 4})}};
  const auto groups = muon_groups(model, {.lr = 0.02}, {.lr = 0.003});
  ASSERT_EQ(groups.size(), 2U);
  ASSERT_EQ(groups[0].parameters.size(), 2U);
  EXPECT_TRUE(groups[0].parameters[0].is_same(model[1].tensor));
  EXPECT_TRUE(groups[0].parameters[1].is_same(model[3].tensor));
  EXPECT_TRUE(groups[0].options.use_muon);
  EXPECT_EQ(groups[1].parameters.size(), 4U);
  EXPECT_FALSE(groups[1].options.use_muon);
  EXPECT_EQ(groups[1].options.lr, 0.003);
  EXPECT_EQ(muon_groups({model[1]}, {}, {}).size(), 1U);
}

TEST(Muon, ATiedMatrixIsInOneGroupForWhichEachNameCounts) {
  const at::Tensor tied = at::zeros({10, 4}).requires_grad_();
  const at::Tensor block = at::zeros({4, 4}).requires_grad_();
  const auto groups = muon_groups(
      {{"head.weight", tied}, {"embed.weight", tied}, {"a.w", block}, {"b.w", block}}, {}, {});
  ASSERT_EQ(groups.size(), 2U);
  ASSERT_EQ(groups[0].parameters.size(), 1U);
  EXPECT_TRUE(groups[0].parameters[0].is_same(block));
  ASSERT_EQ(groups[1].parameters.size(), 1U);
  EXPECT_TRUE(groups[1].parameters[0].is_same(tied));
}

TEST(Muon, ACycleOfMomentumReachesBothKindsOfGroup) {
  const at::Tensor matrix = at::zeros({3, 4}).requires_grad_();
  const at::Tensor bias = at::zeros({4}).requires_grad_();
  Muon optimizer(muon_groups({{"w", matrix}, {"b", bias}}, {}, {}));
  set_momentum(optimizer, 0, 0.7, 0.99);
  set_momentum(optimizer, 1, 0.7, 0.99);
  EXPECT_EQ(optimizer.options(0).momentum, 0.7);
  EXPECT_EQ(optimizer.options(1).betas, (std::pair{0.7, 0.99}));
}

TEST(Muon, KeepsOneNumberOfStateAnElementOfAMatrixAndTwoOfOthers) {
  const at::Tensor matrix = at::zeros({3, 4}).requires_grad_();
  const at::Tensor bias = at::zeros({4}).requires_grad_();
  Muon optimizer(muon_groups({{"w", matrix}, {"b", bias}}, {}, {}));
  matrix.mutable_grad() = at::ones_like(matrix);
  bias.mutable_grad() = at::ones_like(bias);
  optimizer.step();
  int64_t numbers_kept = 0;
  for (const NamedTensor& entry : optimizer_tensors(optimizer, namer({matrix, bias}))) {
    numbers_kept += entry.tensor.numel() > 1 ? entry.tensor.numel() : 0;
  }
  EXPECT_EQ(numbers_kept, 12 + 2 * 4);
}

}  // namespace
}  // namespace lockstep::optim
