// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/convert_floats.h"

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "lockstep/storage/test_files.h"

namespace lockstep::cli {
namespace {

using storage::Dtype;
using storage::raw_bytes;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ConvertFloats, OfEveryFp16AndBf16ThereAndBackGivesTheSameBits) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float half = value_of_half(bits);
    const float bfloat16 = value_of_bfloat16(bits);
    if (std::isnan(half)) {
      EXPECT_EQ(half_of(half), bits | 0x200) << "quiet";
    } else {
      EXPECT_EQ(half_of(half), bits);
    }
    if (std::isnan(bfloat16)) {
      EXPECT_EQ(bfloat16_of(bfloat16), bits | 0x40) << "quiet";
    } else {
      EXPECT_EQ(bfloat16_of(bfloat16), bits);
    }
  }
}

TEST(ConvertFloats, ReadsBitPatternsOfEachDtype) {
  EXPECT_EQ(value_of_half(0x3c00), 1);
  EXPECT_EQ(value_of_half(0xbe00), -1.5F);
  EXPECT_EQ(value_of_half(0x7bff), 65504);
  EXPECT_EQ(value_of_half(0x0001), 0x1p-24F);
  EXPECT_EQ(value_of_half(0x0400), 0x1p-14F);
  EXPECT_EQ(value_of_half(0xfc00), -kInfinity);
  EXPECT_TRUE(std::signbit(value_of_half(0x8000)));
  EXPECT_EQ(value_of_bfloat16(0x3f80), 1);
  EXPECT_EQ(value_of_bfloat16(0xc000), -2);
}

TEST(ConvertFloats, RoundsToTheNearestAndTiesToEven) {
  // A value between two neighbours is rounded to the nearer one, the middle to the even one.
  const auto check = [](auto value_of, auto of, uint16_t last) {
    for (uint16_t low = 0; low < last; ++low) {
      const auto high = static_cast<uint16_t>(low + 1);
      const float middle = (value_of(low) + value_of(high)) / 2;
      EXPECT_EQ(of(middle), low % 2 == 0 ? low : high) << middle;
      EXPECT_EQ(of(-middle), (low % 2 == 0 ? low : high) | 0x8000) << middle;
      EXPECT_EQ(of(std::nextafter(middle, 0.0F)), low) << middle;
      EXPECT_EQ(of(std::nextafter(middle, kInfinity)), high) << middle;
    }
  };
  check(value_of_half, half_of, 0x7bff);
  // All powers of two have the same neighbours; beyond the sum of two is infinite.
  check(value_of_bfloat16, bfloat16_of, 0x4000);
  EXPECT_EQ(half_of(65519.996F), 0x7bff);
  EXPECT_EQ(half_of(65520), 0x7c00);
  EXPECT_EQ(half_of(-1e30F), 0xfc00);
  EXPECT_EQ(bfloat16_of(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(ConvertFloats, CountsFiniteValuesThatBecameInfinite) {
  std::string to(8, '\0');
  const std::string from = raw_bytes<float>({1, 70000, -kInfinity, NAN});
  EXPECT_EQ(convert_floats(Dtype::kF32, from, Dtype::kF16, to.data()), 1);
  EXPECT_EQ(to.substr(0, 6), raw_bytes<uint16_t>({0x3c00, 0x7c00, 0xfc00}));
  EXPECT_EQ(convert_floats(Dtype::kF32, from, Dtype::kBF16, to.data()), 0);
  EXPECT_EQ(to.substr(0, 6), raw_bytes<uint16_t>({0x3f80, 0x4789, 0xff80}));
}

TEST(ConvertFloats, NeedsNoAlignment) {
  const std::string from = "x" + raw_bytes<uint16_t>({0x3c00, 0xbe00});
  std::string to(9, '\0');
  const std::string_view odd = std::string_view(from).substr(1);
  EXPECT_EQ(convert_floats(Dtype::kF16, odd, Dtype::kF32, to.data() + 1), 0);
  EXPECT_EQ(to.substr(1), raw_bytes<float>({1, -1.5F}));
}

}  // namespace
}  // namespace lockstep::cli
