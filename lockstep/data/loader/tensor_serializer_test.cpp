// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/tensor_serializer.h"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

template <typename T>
T round_trip(const T& value) {
  TensorSerializer writer;
  pack(value, writer);
  TensorDeserializer reader(writer.bytes());
  T read{};
  unpack(read, reader);
  return read;
}

TEST(TensorSerializer, RestoresTensorsOfEveryDtypeAndShape) {
  for (const at::ScalarType type :
       {at::kByte,
        at::kChar,
        at::kShort,
        at::kInt,
        at::kLong,
        at::kBool,
        at::kHalf,
        at::kBFloat16,
        at::kFloat,
        at::kDouble,
        at::kComplexDouble,
        at::kFloat8_e4m3fn}) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{}, {1}, {0}, {3, 0}, {5, 3}, {2, 3, 4}}) {
      int64_t numel = 1;
      for (const int64_t size : sizes) {
        numel *= size;
      }
      const at::Tensor tensor =
          at::arange(numel, at::kLong).remainder(2).to(at::kFloat).to(type).view(sizes);
      // Twice, so that the second does not begin where the first one's alignment helps it.
      const auto [first, second] = round_trip(std::pair(tensor, tensor));
      for (const at::Tensor& read : {first, second}) {
        ASSERT_EQ(read.scalar_type(), type);
        ASSERT_EQ(read.sizes(), tensor.sizes());
        ASSERT_TRUE(read.is_contiguous());
        ASSERT_TRUE(at::equal(read.to(at::kFloat), tensor.to(at::kFloat))) << type << sizes.size();
      }
    }
  }
}

TEST(TensorSerializer, RestoresStridedAndConjugatedTensors) {
  const at::Tensor turned = at::arange(6).view({2, 3}).t();
  EXPECT_TRUE(at::equal(round_trip(turned), turned));
  const at::Tensor conjugate = at::complex(at::ones({2}), at::ones({2})).conj();
  ASSERT_TRUE(conjugate.is_conj());
  EXPECT_TRUE(at::equal(round_trip(conjugate), conjugate));
  EXPECT_FALSE(round_trip(at::ones({2}).requires_grad_()).requires_grad());
}

TEST(TensorSerializer, RestoresContainersNumbersAndStrings) {
  enum class Colour : uint8_t { kRed, kBlue };
  using Value = std::tuple<
      std::vector<bool>,
      std::map<std::string, std::vector<int>>,
      std::optional<std::string>,
      std::optional<double>,
      std::array<std::pair<Colour, float>, 2>>;
  const Value value{
      {true, false, true},
      {{"", {}}, {std::string("a\0b", 3), {1, -2}}},
      std::nullopt,
      -0.5,
      {std::pair{Colour::kBlue, 1.5F}, std::pair{Colour::kRed, 2.5F}}};
  EXPECT_EQ(round_trip(value), value);
}

TEST(TensorSerializer, RefusesUndefinedAndSparseTensors) {
  EXPECT_THAT(
      [] { round_trip(at::Tensor()); }, ThrowsMessage<ConfigError>(HasSubstr("undefined tensor")));
  EXPECT_THAT(
      [] {
        round_trip(at::ones({2, 2}).to_sparse());
      },
      ThrowsMessage<ConfigError>(HasSubstr("sparse")));
}

}  // namespace
}  // namespace lockstep::data
