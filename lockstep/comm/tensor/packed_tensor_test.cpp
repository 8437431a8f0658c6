// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tensor/packed_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(PackedTensor, RestoresDtypeShapeAndValues) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong}) {
    const at::Tensor sent = at::arange(6, dtype).view({2, 3}).t();
    const auto got = unpack<at::Tensor>(pack(sent));
    EXPECT_EQ(got.scalar_type(), dtype);
    EXPECT_TRUE(got.equal(sent)) << got;
  }
  EXPECT_EQ(
      unpack<at::Tensor>(pack(at::empty({0, 4}))).sizes().vec(), (std::vector<int64_t>{0, 4}));
}

TEST(PackedTensor, PacksIntoVectors) {
  const auto got =
      unpack<std::vector<at::Tensor>>(pack(std::vector<at::Tensor>{at::ones({2}), at::zeros({})}));
  ASSERT_EQ(got.size(), 2U);
  EXPECT_TRUE(got[0].equal(at::ones({2})));
  EXPECT_EQ(got[1].dim(), 0);
}

TEST(PackedTensor, RefusesOneWithoutValues) {
  EXPECT_THROW(pack(at::Tensor()), ConfigError);
  EXPECT_THROW(pack(at::ones({2, 2}).to_sparse()), ConfigError);
}

}  // namespace
}  // namespace lockstep
