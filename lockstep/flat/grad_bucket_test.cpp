// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/grad_bucket.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace lockstep::flat {
namespace {

GradBucket make(const std::vector<at::Tensor>& parameters) {
  return GradBucket(plan_buckets(parameters, 1 << 20, 1 << 20).front(), parameters);
}

TEST(GradBucket, ViewsAreInTheBuffer) {
  const GradBucket bucket = make({at::ones({2, 2}), at::ones({3})});
  EXPECT_EQ(bucket.view(0).sizes(), at::IntArrayRef({3}));
  bucket.view(0).fill_(2);
  bucket.view(1).fill_(5);
  EXPECT_EQ(bucket.buffer().sum().item<double>(), 6 + 20);
}

TEST(GradBucket, PartsOfTheBufferShareItsMemory) {
  GradBucket bucket = make({at::ones({2, 2}), at::ones({3})});
  bucket.view(1).copy_(at::arange(4.0).reshape({2, 2}));
  bucket.set_flags({true, false});
  EXPECT_TRUE(at::equal(bucket.flat_gradient(1), at::arange(4.0)));
  EXPECT_EQ(bucket.gradients().sum().item<double>(), 6);
  EXPECT_TRUE(at::equal(bucket.flag_values(), at::tensor({1.0F, 0.0F})));
  EXPECT_EQ(bucket.buffer().numel(), bucket.gradients().numel() + 2);
}

TEST(GradBucket, FlagsOfAnyRankSurviveAnAverage) {
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> parameters(3, at::ones({2}, dtype));
    GradBucket mine = make(parameters);
    GradBucket theirs = make(parameters);
    mine.set_flags({true, false, false});
    theirs.set_flags({false, false, true});
    at::Tensor all = mine.buffer();
    all.add_(theirs.buffer()).div_(512);
    EXPECT_EQ(mine.flags(), (std::vector<bool>{true, false, true})) << dtype;
  }
}

}  // namespace
}  // namespace lockstep::flat
