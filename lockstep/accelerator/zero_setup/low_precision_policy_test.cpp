// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/zero_setup/dtypes.h"
#include "lockstep/base/error.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

NamedTensors narrow_and_frozen() {
  return {
      {"weight", at::ones({3}, at::kBFloat16).set_requires_grad(true)}, {"frozen", at::ones({3})}};
}

TEST(LowPrecisionPolicy, SumsAreInFp32IfNothingIsAveragedBefore) {
  ZeroPlugin plugin{.stage = 1};
  EXPECT_TRUE(internal::low_precision_policy(plugin).fp32_masters);
  EXPECT_FALSE(internal::low_precision_policy(plugin).fp32_gradients);
  EXPECT_FALSE(internal::low_precision_policy(plugin).rounded_sums);
  plugin.grad_accum_dtype = FloatDtype::kFloat32;
  EXPECT_TRUE(internal::low_precision_policy(plugin).fp32_gradients);
  EXPECT_FALSE(internal::low_precision_policy(plugin).fp32_comm);
  plugin.communication_data_type = FloatDtype::kFloat32;
  EXPECT_TRUE(internal::low_precision_policy(plugin).fp32_comm);
  plugin = {.stage = 2, .grad_accum_dtype = FloatDtype::kFloat32};
  EXPECT_FALSE(internal::low_precision_policy(plugin).fp32_gradients)
      << "averages add up in fp32 anyway";
  plugin.grad_accum_dtype = FloatDtype::kBfloat16;
  EXPECT_TRUE(internal::low_precision_policy(plugin).rounded_sums);
}

TEST(LowPrecisionPolicy, SumsThatCannotBeAreRefused) {
  ZeroPlugin plugin{.stage = 2, .grad_accum_dtype = FloatDtype::kBfloat16};
  EXPECT_NO_THROW(internal::check_sums(plugin, narrow_and_frozen()));
  plugin.grad_accum_dtype = FloatDtype::kFloat16;
  EXPECT_THAT(
      [&] { internal::check_sums(plugin, narrow_and_frozen()); },
      ThrowsMessage<ConfigError>(
          HasSubstr("gradients of weight (BFloat16) cannot be accumulated in")));
  plugin = {.stage = 2, .fp32_masters = false, .grad_accum_dtype = FloatDtype::kFloat32};
  EXPECT_THAT(
      [&] { internal::check_sums(plugin, narrow_and_frozen()); },
      ThrowsMessage<ConfigError>(
          HasSubstr("gradients without masters have the parameters' dtype")));
  plugin = {.stage = 2, .communication_data_type = FloatDtype::kFloat32};
  EXPECT_THAT(
      [&] { internal::check_sums(plugin, narrow_and_frozen()); },
      ThrowsMessage<ConfigError>(HasSubstr("got Float in stage 2; expected fp16 or bf16 for")));
  plugin.communication_data_type = FloatDtype::kBfloat16;
  EXPECT_NO_THROW(internal::check_sums(plugin, narrow_and_frozen()));
  plugin.communication_data_type = FloatDtype::kFloat16;
  EXPECT_THAT(
      [&] { internal::check_sums(plugin, narrow_and_frozen()); },
      ThrowsMessage<ConfigError>(HasSubstr("own dtype for 16-bit parameters; got Half for weight "
                                           "(BFloat16)")));
}

/// The weights after two epochs over 11 samples in groups of three: the last of an epoch has two.
at::Tensor trained_in_uneven_groups(const ZeroPlugin& plugin) {
  at::Tensor weights;
  accelerated_ranks(
      1, {.gradient_accumulation_steps = 3, .zero = plugin}, [&](Accelerator& accelerator) {
        torch::nn::Linear fresh(1, 1);
        fresh->to(at::kBFloat16);
        {
          const at::NoGradGuard no_grad;
          fresh->weight.fill_(0.5);
          fresh->bias.fill_(0.25);
        }
        const at::Tensor rows = at::sin(at::arange(11, at::kFloat)).reshape({11, 1});
        auto [net, optimizer, loader] = accelerator.prepare(
            fresh,
            optim::SGD(fresh->parameters(), {.lr = 0.1}),
            data::Loader(data::TensorDataset(rows, at::arange(11)), {.batch_size = 1}));
        for (int epoch = 0; epoch < 2; ++epoch) {
          for (auto& batch : loader) {
            auto micro_step = accelerator.accumulate(net);
            accelerator.backward(net->forward(batch.data.to(at::kBFloat16)).square().mean());
            optimizer.step();
            optimizer.zero_grad();
          }
        }
        EXPECT_EQ(optimizer.steps(), 8);
        const std::vector<at::Tensor> shard_slices = optimizer.parameters();
        weights =
            at::cat({shard_slices.at(0).detach().clone(), shard_slices.at(1).detach().clone()});
      });
  return weights;
}

TEST(LowPrecisionPolicy, AccumulatedGradientsAreScaledForAShortGroup) {
  const at::Tensor averages = trained_in_uneven_groups({.stage = 2});
  const at::Tensor held = trained_in_uneven_groups(
      {.stage = 1,
       .grad_accum_dtype = FloatDtype::kFloat32,
       .communication_data_type = FloatDtype::kFloat32});
  EXPECT_EQ(held.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(held, averages));
}

}  // namespace
}  // namespace lockstep
