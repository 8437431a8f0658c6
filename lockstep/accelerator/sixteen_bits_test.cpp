// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/sixteen_bits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

NamedTensors narrow_and_frozen() {
  return {
      {"weight", at::ones({3}, at::kBFloat16).set_requires_grad(true)}, {"frozen", at::ones({3})}};
}

TEST(SixteenBits, sums_are_held_wide_where_nothing_is_averaged_before) {
  ZeroPlugin plugin{.stage = 1};
  EXPECT_TRUE(sixteen_bits(plugin).fp32_masters);
  EXPECT_FALSE(sixteen_bits(plugin).fp32_gradients);
  EXPECT_FALSE(sixteen_bits(plugin).rounded_sums);
  plugin.grad_accum_dtype = at::kFloat;
  EXPECT_TRUE(sixteen_bits(plugin).fp32_gradients);
  EXPECT_FALSE(sixteen_bits(plugin).fp32_travel);
  plugin.communication_data_type = at::kFloat;
  EXPECT_TRUE(sixteen_bits(plugin).fp32_travel);
  plugin = {.stage = 2, .grad_accum_dtype = at::kFloat};
  EXPECT_FALSE(sixteen_bits(plugin).fp32_gradients) << "averages add up in fp32 anyway";
  plugin.grad_accum_dtype = at::kBFloat16;
  EXPECT_TRUE(sixteen_bits(plugin).rounded_sums);
}

TEST(SixteenBits, sums_that_cannot_be_are_refused) {
  ZeroPlugin plugin{.stage = 2, .grad_accum_dtype = at::kBFloat16};
  EXPECT_NO_THROW(check_sums(plugin, narrow_and_frozen()));
  plugin.grad_accum_dtype = at::kHalf;
  EXPECT_THAT(
      [&] { check_sums(plugin, narrow_and_frozen()); },
      ThrowsMessage<ConfigError>(HasSubstr("gradients of weight (BFloat16) cannot add up in")));
  plugin = {.stage = 2, .fp32_masters = false, .grad_accum_dtype = at::kFloat};
  EXPECT_THAT(
      [&] { check_sums(plugin, narrow_and_frozen()); },
      ThrowsMessage<ConfigError>(
          HasSubstr("without fp32 masters gradients are of the parameters'")));
  plugin = {.stage = 2, .communication_data_type = at::kFloat};
  EXPECT_THAT(
      [&] { check_sums(plugin, narrow_and_frozen()); },
      ThrowsMessage<ConfigError>(HasSubstr("got Float in stage 2; expected at::kFloat, with")));
}

}  // namespace
}  // namespace lockstep
