// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/stream_copy.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(StreamCopy, CopiesExactlyTheBytesForEveryAlignment) {
  constexpr size_t kRoom = 3 * 64;
  for (const size_t bytes :
       {size_t{0}, size_t{1}, kStreamBytes - 1, kStreamBytes, kStreamBytes + 77}) {
    std::vector<uint8_t> from(bytes + kRoom);
    for (size_t i = 0; i < from.size(); ++i) {
      from[i] = static_cast<uint8_t>(i * 31 + 7);
    }
    for (const size_t to_offset : {0U, 1U, 63U, 64U}) {
      for (const size_t from_offset : {0U, 5U}) {
        std::vector<uint8_t> to(bytes + kRoom, 0xee);
        stream_copy(to.data() + to_offset, from.data() + from_offset, bytes);
        std::vector<uint8_t> expected(bytes + kRoom, 0xee);
        for (size_t i = 0; i < bytes; ++i) {
          expected[to_offset + i] = from[from_offset + i];
        }
        ASSERT_TRUE(to == expected) << bytes << " bytes, " << from_offset << " to " << to_offset;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
