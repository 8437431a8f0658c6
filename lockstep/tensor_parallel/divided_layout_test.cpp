// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor_parallel/divided_layout.h"

#include <gmock/gmock.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep::tensor_parallel {
namespace {

TEST(DividedLayout, TheRanksPartsAreTheFullTensor) {
  for (const int64_t dim : {0, 1}) {
    for (const std::vector<int64_t>& fused : {std::vector<int64_t>{}, {1, 1, 1}, {4, 1, 1}}) {
      ranks(2, [&](Group group) {
        const at::Tensor full = at::arange(24 * 24).view({24, 24});
        const DividedLayout layout({24, 24}, dim, fused, 2);
        const at::Tensor own = layout.own_part(full, group.rank());
        EXPECT_EQ(own.sizes().vec(), layout.own_sizes());
        EXPECT_TRUE(at::equal(layout.full(own, group), full));
      });
    }
  }
}

TEST(DividedLayout, EachFusedLayerIsDivided) {
  const DividedLayout layout({12}, 0, {4, 1, 1}, 2);
  EXPECT_TRUE(
      at::equal(layout.own_part(at::arange(12), 1), at::tensor({4, 5, 6, 7, 9, 11}, at::kLong)));
}

TEST(DividedLayout, SizesThatTheRanksDoNotDivideAreRefused) {
  EXPECT_THROW(DividedLayout({10, 4}, 0, {}, 4), ConfigError);
  EXPECT_THROW(DividedLayout({6, 4}, 0, {1, 1, 1}, 4), ConfigError);
  EXPECT_THROW(DividedLayout({10, 4}, 0, {1, 1, 1}, 1), ConfigError);
}

}  // namespace
}  // namespace lockstep::tensor_parallel
