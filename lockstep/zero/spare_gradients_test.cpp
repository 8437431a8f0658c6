// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/spare_gradients.h"

#include <gtest/gtest.h>

#include "lockstep/comm/thread/ranks.h"

namespace lockstep::zero {
namespace {

TEST(SpareGradients, small_buckets_get_the_memory_that_one_of_their_size_left) {
  ranks(1, [](const Group& group) {
    SpareGradients spares;
    at::Tensor first = spares.take(group, 1000, at::kFloat);
    const void* memory = first.const_data_ptr();
    spares.give(std::move(first));
    EXPECT_NE(spares.take(group, 1000, at::kDouble).const_data_ptr(), memory);
    EXPECT_NE(spares.take(group, 999, at::kFloat).const_data_ptr(), memory);
    const at::Tensor again = spares.take(group, 1000, at::kFloat);
    EXPECT_EQ(again.const_data_ptr(), memory);
    EXPECT_NE(spares.take(group, 1000, at::kFloat).const_data_ptr(), memory) << "it is in use";
  });
}

TEST(SpareGradients, no_more_than_four_mebibytes_stay_and_nothing_of_large_buckets) {
  ranks(1, [](const Group& group) {
    constexpr int64_t kMebibyte = int64_t{1} << 18;  // Of floats.
    SpareGradients spares;
    at::Tensor large = spares.take(group, kMebibyte + 1, at::kFloat);
    c10::weak_intrusive_ptr<at::TensorImpl> large_gone(large.getIntrusivePtr());
    spares.give(std::move(large));
    EXPECT_TRUE(large_gone.expired());
    std::vector<at::Tensor> taken;
    std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> kept;
    for (int i = 0; i < 5; ++i) {
      taken.push_back(spares.take(group, kMebibyte, at::kFloat));
      kept.emplace_back(taken.back().getIntrusivePtr());
    }
    for (at::Tensor& tensor : taken) {
      spares.give(std::move(tensor));
    }
    EXPECT_FALSE(kept[3].expired());
    EXPECT_TRUE(kept[4].expired());
  });
}

}  // namespace
}  // namespace lockstep::zero
