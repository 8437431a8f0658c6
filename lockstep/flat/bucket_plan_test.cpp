// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/bucket_plan.h"

#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace lockstep::flat {
namespace {

TEST(PlanBuckets, RunsFromTheLastParameterToTheFirst) {
  const auto plans =
      plan_buckets({at::ones({16}), at::ones({32}), at::ones({48})}, 1 << 20, 1 << 20);
  ASSERT_EQ(plans.size(), 1U);
  ASSERT_EQ(plans[0].entries.size(), 3U);
  EXPECT_EQ(plans[0].entries[0].parameter, 2);
  EXPECT_EQ(plans[0].entries[2].parameter, 0);
  EXPECT_EQ(plans[0].entries[1].offset, 48);
  EXPECT_EQ(plans[0].numel, 96);
}

TEST(PlanBuckets, StartsEverySlotOnACacheLine) {
  const auto plans =
      plan_buckets({at::ones({3}, at::kHalf), at::ones({5}, at::kHalf)}, 1 << 20, 1 << 20);
  ASSERT_EQ(plans.size(), 1U);
  EXPECT_EQ(plans[0].entries[1].offset * 2 % 64, 0);
}

TEST(PlanBuckets, CapsTheFirstBucketLowerThanTheOthers) {
  const std::vector<at::Tensor> ten(10, at::ones({256}));  // 1 KiB each
  const auto plans = plan_buckets(ten, 4096, 1024);
  ASSERT_EQ(plans.size(), 4U);
  EXPECT_EQ(plans[0].entries.size(), 1U);
  EXPECT_EQ(plans[1].entries.size(), 4U);
}

TEST(PlanBuckets, GivesAParameterLargerThanTheCapItsOwnBucket) {
  const auto plans = plan_buckets({at::ones({4}), at::ones({10000}), at::ones({4})}, 64, 64);
  ASSERT_EQ(plans.size(), 3U);
  EXPECT_EQ(plans[1].entries.size(), 1U);
}

TEST(PlanBuckets, KeepsOneBucketADtypeIfDtypesAlternate) {
  const auto plans =
      plan_buckets({at::ones({4}), at::ones({4}, at::kDouble), at::ones({4})}, 1 << 20, 1 << 20);
  ASSERT_EQ(plans.size(), 2U);
  EXPECT_EQ(plans[0].entries.size(), 2U);
}

TEST(PlanBuckets, SeparatesParametersWith16BitCommunicationInTheOrderOfBackward) {
  // Layers of a matrix, which is sent in bf16, and of a vector, which is not.
  std::vector<at::Tensor> layers;
  CommDtypes comm_dtypes;
  for (int i = 0; i < 4; ++i) {
    layers.push_back(at::ones({256}));
    comm_dtypes.parameters.insert(layers.back().unsafeGetTensorImpl());
    layers.push_back(at::ones({16}));
  }
  layers.push_back(at::ones({16}, at::kHalf));
  comm_dtypes.parameters.insert(layers.back().unsafeGetTensorImpl());
  const auto plans = plan_buckets(layers, 2048, 1024, comm_dtypes);
  ASSERT_EQ(plans.size(), 4U);
  EXPECT_EQ(plans[0].comm_dtype, std::nullopt) << "has 16 bits already";
  EXPECT_EQ(plans[1].comm_dtype, at::kBFloat16);
  EXPECT_EQ(plans[1].entries.back().parameter, 4);
  EXPECT_EQ(plans[2].comm_dtype, std::nullopt);
  EXPECT_EQ(plans[2].entries.size(), 4U);
  EXPECT_EQ(plans[2].entries.back().parameter, 1);
  EXPECT_EQ(plans[3].comm_dtype, at::kBFloat16);
  EXPECT_EQ(plans[3].entries.back().parameter, 0);
}

TEST(PlanBuckets, OfNothingIsNothing) {
  EXPECT_TRUE(plan_buckets({}, 1, 1).empty());
}

TEST(ViewLike, KeepsTheParametersStrides) {
  const at::Tensor parameter = at::ones({2, 3, 4, 5}).to(at::MemoryFormat::ChannelsLast);
  const at::Tensor buffer = at::zeros({200});
  const at::Tensor view =
      view_like(buffer, {.parameter = 0, .offset = 16, .numel = 120}, parameter);
  EXPECT_EQ(view.strides(), parameter.strides());
  view.fill_(1);
  EXPECT_EQ(buffer.sum().item<double>(), 120);
  EXPECT_EQ(buffer[15].item<double>(), 0);
}

TEST(ViewLike, IsContiguousForAParameterWithGaps) {
  const at::Tensor parameter = at::ones({4, 6}).narrow(1, 0, 3);
  const at::Tensor view =
      view_like(at::zeros({12}), {.parameter = 0, .offset = 0, .numel = 12}, parameter);
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(view.sizes(), parameter.sizes());
}

}  // namespace
}  // namespace lockstep::flat
