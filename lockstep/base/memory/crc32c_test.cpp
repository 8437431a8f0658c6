// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/crc32c.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Function = uint32_t (*)(uint32_t, const void*, size_t);

std::vector<Function> every_way() {
  std::vector<Function> ways = {&crc32c, &detail::crc32c_by_table};
  if (detail::have_crc32c_instruction()) {
    ways.push_back(&detail::crc32c_by_instruction);
  }
  return ways;
}

std::string noise(size_t size) {
  std::string bytes(size, '\0');
  uint32_t state = 12345;
  for (char& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

TEST(Crc32c, GivesThePublishedCheckValues) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(""), 0U);
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string rising(32, '\0');
  for (size_t i = 0; i < rising.size(); ++i) {
    rising[i] = static_cast<char>(i);
  }
  EXPECT_EQ(crc32c(rising), 0x46dd794eU);
}

TEST(Crc32c, EveryWayGivesTheSameAnswerAtEveryLengthAndAlignment) {
  const std::string bytes = noise(300);
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; begin + size <= bytes.size(); size += (size < 40 ? 1 : 37)) {
      const uint32_t expected = detail::crc32c_by_table(7, bytes.data() + begin, size);
      for (Function way : every_way()) {
        ASSERT_EQ(way(7, bytes.data() + begin, size), expected) << begin << " + " << size;
      }
    }
  }
}

TEST(Crc32c, EveryWayGivesTheSameAnswerWhereLanesBeginAndEnd) {
  const std::string bytes = noise(200'000);
  for (const size_t around : {768, 1536, 3072, 6144, 12288, 24576, 49152, 73728, 199'000}) {
    for (size_t size = around - 9; size <= around + 9; ++size) {
      for (const size_t begin : {0, 1, 7}) {
        const uint32_t expected = detail::crc32c_by_table(7, bytes.data() + begin, size);
        for (Function way : every_way()) {
          ASSERT_EQ(way(7, bytes.data() + begin, size), expected) << begin << " + " << size;
        }
      }
    }
  }
}

TEST(Crc32c, ContinuesFromAPreviousChecksum) {
  const std::string bytes = noise(100);
  for (Function way : every_way()) {
    const uint32_t full = way(0, bytes.data(), bytes.size());
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      const uint32_t first = way(0, bytes.data(), cut);
      ASSERT_EQ(way(first, bytes.data() + cut, bytes.size() - cut), full) << cut;
    }
  }
}

TEST(Crc32c, SeesOneFlippedBitAnywhere) {
  std::string bytes = noise(64);
  const uint32_t full = crc32c(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_NE(crc32c(bytes), full) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
}

TEST(Crc32c, MasksAsTfRecordDoes) {
  EXPECT_EQ(masked_crc32c(0), 0xa282ead8U);
  // TensorFlow's own crc32c_test: two maskings of a checksum differ from it and from one another.
  const uint32_t crc = crc32c("foo");
  EXPECT_NE(masked_crc32c(crc), crc);
  EXPECT_NE(masked_crc32c(masked_crc32c(crc)), crc);
  EXPECT_EQ(masked_crc32c(0xe3069283U), 0xc78ab0e5U);
}

}  // namespace
}  // namespace lockstep
