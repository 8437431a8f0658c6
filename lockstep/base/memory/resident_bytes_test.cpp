// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/resident_bytes.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(ResidentBytes, GrowWithMemoryThatIsWritten) {
  constexpr int64_t kSize = 64 << 20;
  const int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  const std::vector<char> memory(kSize, 1);
  EXPECT_GT(resident_bytes(), before + kSize * 9 / 10) << memory.back();
}

}  // namespace
}  // namespace lockstep
