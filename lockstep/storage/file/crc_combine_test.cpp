// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/file/crc_combine.h"

#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/memory/crc32c.h"

namespace lockstep::storage {
namespace {

TEST(CrcCombine, GivesTheChecksumOfBothPartsTogether) {
  std::string bytes;
  for (int i = 0; i < 70000; ++i) {
    bytes.push_back(static_cast<char>(i * i + i / 251));
  }
  const std::string_view all = bytes;
  for (const size_t cut :
       {size_t{0}, size_t{1}, size_t{7}, size_t{4096}, size_t{65537}, all.size()}) {
    EXPECT_EQ(
        crc32c_combine(crc32c(all.substr(0, cut)), crc32c(all.substr(cut)), all.size() - cut),
        crc32c(all))
        << cut;
  }
}

TEST(CrcCombine, HandlesLengthsBeyondMemory) {
  // Appending 2^61 bytes twice is appending 2^62.
  const uint64_t half = uint64_t{1} << 61;
  const uint32_t start = 0x12345678;
  EXPECT_EQ(
      crc32c_combine(crc32c_combine(start, 0, half), 0, half), crc32c_combine(start, 0, 2 * half));
}

}  // namespace
}  // namespace lockstep::storage
