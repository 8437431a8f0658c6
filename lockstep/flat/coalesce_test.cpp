// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/coalesce.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/comm/thread/ranks.h"

namespace lockstep::flat {
namespace {

TEST(BroadcastCoalesced, GivesEveryRankRootsValuesForEveryBucketSize) {
  for (int64_t cap_bytes : {1, 100, 1 << 20}) {
    ranks(3, [cap_bytes](Group group) {
      const double mine = group.rank() + 1;
      at::Tensor parameter = at::full({3, 5}, mine).requires_grad_();
      const std::vector<at::Tensor> tensors = {
          parameter,
          at::full({}, group.rank() + 1, at::kLong),
          at::full({2, 3, 4, 4}, mine, at::kDouble).to(at::MemoryFormat::ChannelsLast),
          at::full({4, 6}, mine).narrow(1, 1, 2),
          at::full({0}, mine),
      };
      broadcast_coalesced(group, tensors, 1, cap_bytes);
      for (const at::Tensor& tensor : tensors) {
        EXPECT_TRUE(at::equal(tensor.detach(), at::full_like(tensor.detach(), 2)));
      }
      EXPECT_TRUE(parameter.requires_grad());
    });
  }
}

TEST(AllReduceCoalesced, AveragesEveryTensorForEveryLayoutAndBucketSize) {
  for (int64_t cap_bytes : {1, 100, 1 << 20}) {
    ranks(3, [cap_bytes](Group group) {
      const double mine = group.rank() + 1;
      at::Tensor parameter = at::full({3, 5}, mine).requires_grad_();
      const std::vector<at::Tensor> tensors = {
          parameter,
          at::full({}, mine, at::kHalf),
          at::full({2, 3, 4, 4}, mine, at::kDouble).to(at::MemoryFormat::ChannelsLast),
          at::full({4, 6}, mine).narrow(1, 1, 2),
          at::full({0}, mine),
      };
      all_reduce_coalesced(group, tensors, ReduceOp::kAvg, cap_bytes);
      for (const at::Tensor& tensor : tensors) {
        EXPECT_TRUE(at::equal(tensor.detach(), at::full_like(tensor.detach(), 2)));
      }
      EXPECT_TRUE(parameter.requires_grad());
    });
  }
}

TEST(AllReduceCoalesced, RoundsHalfPrecisionOnce) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    ranks(4, [dtype](Group group) {
      // Rank 0 holds 1024, the others what a 16-bit sum would lose one by one; float16's sum of the
      // second would be infinite.
      const at::Tensor small = at::full({3}, group.rank() == 0 ? 1024.0 : 1.0, dtype);
      const at::Tensor large = at::full({3}, 60000.0, dtype);
      all_reduce_coalesced(group, {small, large}, ReduceOp::kAvg);
      EXPECT_TRUE(at::equal(small, at::full({3}, 1027.0 / 4).to(dtype)));
      EXPECT_TRUE(at::equal(large, at::full({3}, 60000.0, dtype)));
    });
  }
}

TEST(AllReduceCoalesced, SumsIntegers) {
  ranks(2, [](Group group) {
    const at::Tensor count = at::full({2}, group.rank() + 1, at::kLong);
    all_reduce_coalesced(group, {count});
    EXPECT_TRUE(at::equal(count, at::full({2}, 3, at::kLong)));
  });
}

}  // namespace
}  // namespace lockstep::flat
