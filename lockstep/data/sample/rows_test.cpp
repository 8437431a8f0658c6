// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sample/rows.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<int64_t> kIndices = {4, 0, 0, 3};

TEST(GatherRows, EqualsIndexSelectForAnyTypeAndShape) {
  for (const at::ScalarType dtype :
       {at::kByte,
        at::kBool,
        at::kHalf,
        at::kBFloat16,
        at::kInt,
        at::kLong,
        at::kFloat,
        at::kDouble,
        at::kComplexFloat}) {
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{5}, {5, 3}, {5, 1, 2, 2}, {5, 0}}) {
      const at::Tensor source = at::rand(shape).mul(100).to(dtype);
      const at::Tensor rows = gather_rows(source, kIndices);
      EXPECT_EQ(rows.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(rows, source.index_select(0, at::tensor(kIndices))));
    }
  }
}

TEST(GatherRows, ReadsScatteredRows) {
  const at::Tensor wide = at::arange(40).reshape({5, 8});
  const at::Tensor source = wide.slice(/*dim=*/1, 2, 5);
  EXPECT_TRUE(
      at::equal(gather_rows(source, kIndices), source.index_select(0, at::tensor(kIndices))));
  const at::Tensor every_other = at::arange(10).slice(0, 0, 10, 2);
  EXPECT_TRUE(at::equal(
      gather_rows(every_other, kIndices), every_other.index_select(0, at::tensor(kIndices))));
}

TEST(GatherRows, OfNoIndicesIsEmpty) {
  EXPECT_EQ(gather_rows(at::zeros({5, 3}), {}).sizes(), at::IntArrayRef({0, 3}));
}

TEST(GatherRows, RefusesAnIndexOutsideTheData) {
  const at::Tensor source = at::zeros({5, 3});
  for (const int64_t index : {int64_t{-1}, int64_t{5}}) {
    const std::vector<int64_t> indices = {0, index};
    EXPECT_THAT(
        [&] { gather_rows(source, indices); },
        ThrowsMessage<ConfigError>(HasSubstr("expected 0 to 4")));
  }
}

TEST(GatherRows, RefusesTensorsWithoutPlainRows) {
  const auto refuses = [](const at::Tensor& source, const char* why) {
    EXPECT_THAT([&] { gather_rows(source, {}); }, ThrowsMessage<ConfigError>(HasSubstr(why)));
  };
  refuses(at::zeros({}), "expected a dense CPU tensor with a dimension 0");
  refuses(at::Tensor(), "undefined tensor");
  refuses(at::zeros({3, 3}).to_sparse(), "dense");
  refuses(at::zeros({5, 2, 3}).transpose(1, 2), "try .contiguous()");
}

}  // namespace
}  // namespace lockstep::data
