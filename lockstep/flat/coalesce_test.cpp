// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/coalesce.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/comm/thread/ranks.h"

namespace lockstep::flat {
namespace {

TEST(BroadcastCoalesced, gives_every_rank_roots_values_whatever_the_bucket_size) {
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

}  // namespace
}  // namespace lockstep::flat
