// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/copy_values.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

namespace lockstep::flat {
namespace {

constexpr int64_t kLarge = 600;  // 1.4 MB of fp32 squared: streamed.

TEST(CopyValues, IsCopyForEveryDtypeOrderAndSize) {
  for (const int64_t side : {int64_t{0}, int64_t{3}, kLarge}) {
    const at::Tensor values = torch::randn({side, side});
    const at::Tensor expected = values.to(torch::kDouble);
    for (const auto to : {torch::kFloat, torch::kDouble}) {
      at::Tensor rows = torch::full({side, side}, -1, to);
      copy_values(rows, values);
      EXPECT_TRUE(torch::equal(rows.to(torch::kDouble), expected)) << side;
      at::Tensor columns = torch::full({side, side}, -1, to).t();
      copy_values(columns, values);
      EXPECT_TRUE(torch::equal(columns.to(torch::kDouble), expected)) << side;
      at::Tensor part = torch::full({side, 2 * side}, -1, to).narrow(1, 0, side);
      copy_values(part, values);
      EXPECT_TRUE(torch::equal(part.to(torch::kDouble), expected)) << side;
    }
    at::Tensor row = torch::empty({side, side});
    copy_values(row, values.narrow(0, 0, side == 0 ? 0 : 1));  // Broadcast.
    EXPECT_TRUE(torch::equal(row, values.narrow(0, 0, side == 0 ? 0 : 1).expand({side, side})));
  }
}

TEST(CopyValues, OfAParameterIsNotSeenByAutogradButByItsVersion) {
  at::Tensor weight = torch::zeros({kLarge, kLarge}, torch::requires_grad());
  const at::Tensor loss = (weight * weight).sum();
  copy_values(weight, torch::ones({kLarge, kLarge}));
  EXPECT_TRUE(weight.is_leaf());
  EXPECT_EQ(weight.sum().item<float>(), kLarge * kLarge);
  EXPECT_THROW(loss.backward(), c10::Error);  // It needs the values that are gone.
}

TEST(CopyValues, RefusesShapesThatDoNotFit) {
  EXPECT_THROW(
      copy_values(torch::empty({kLarge, kLarge}), torch::empty({kLarge + 1, kLarge})), c10::Error);
}

}  // namespace
}  // namespace lockstep::flat
