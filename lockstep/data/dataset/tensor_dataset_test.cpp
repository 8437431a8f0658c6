// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/tensor_dataset.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/data/sample/dataset.h"

namespace lockstep::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

static_assert(Dataset<TensorDataset>);

TEST(TensorDataset, BatchesRowsOfBothTensors) {
  const TensorDataset dataset(at::arange(12).reshape({4, 3}), at::arange(4).mul(10));
  EXPECT_EQ(dataset.size(), 4);
  const std::vector<int64_t> indices = {2, 0};
  const Batch batch = dataset.get_batch(indices);
  EXPECT_TRUE(at::equal(batch.data, at::tensor({6, 7, 8, 0, 1, 2}, at::kLong).reshape({2, 3})));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({20, 0}, at::kLong)));
}

TEST(TensorDataset, HoldsItsTensorsWithoutCopying) {
  const at::Tensor data = at::zeros({4, 3});
  EXPECT_EQ(TensorDataset(data, at::zeros({4})).data().const_data_ptr(), data.const_data_ptr());
}

TEST(TensorDataset, CutsTheGradient) {
  const at::Tensor data = at::zeros({4, 3}).requires_grad_();
  const std::vector<int64_t> indices = {1};
  EXPECT_FALSE(TensorDataset(data, at::zeros({4})).get_batch(indices).data.requires_grad());
}

TEST(TensorDataset, RefusesTensorsThatDoNotBelongTogether) {
  EXPECT_THAT(
      [] {
        TensorDataset(at::zeros({4, 3}), at::zeros({5}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("got 4 and 5, expected the same dimension 0")));
  EXPECT_THAT(
      [] {
        TensorDataset(at::zeros({4, 3}), at::zeros({}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("[TensorDataset: target]")));
}

}  // namespace
}  // namespace lockstep::data
