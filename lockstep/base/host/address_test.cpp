// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/host/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Address, OfANumberIsThatNumber) {
  for (const char* number : {"127.0.0.1", "192.0.2.1", "::1", "2001:db8::1"}) {
    std::string why;
    const std::vector<Address> found = resolve(number, 4711, why);
    ASSERT_EQ(found.size(), 1U) << number << ": " << why;
    EXPECT_EQ(found.front().host(), number);
    EXPECT_EQ(found.front().port(), 4711);
    EXPECT_TRUE(is_numeric(number));
  }
}

TEST(Address, OfAnUnknownNameIsEmptyAndSaysWhy) {
  std::string why;
  EXPECT_TRUE(resolve("nobody.invalid", 1, why).empty());
  EXPECT_THAT(why, testing::Not(testing::IsEmpty()));
  EXPECT_FALSE(is_numeric("nobody.invalid"));
}

TEST(Address, KnowsLoopbackAndThisMachine) {
  std::string why;
  EXPECT_TRUE(resolve("127.0.1.1", 1, why).front().is_loopback());
  EXPECT_TRUE(resolve("127.0.0.1", 1, why).front().is_own());
  EXPECT_FALSE(resolve("192.0.2.1", 1, why).front().is_loopback());
  EXPECT_FALSE(resolve("192.0.2.1", 1, why).front().is_own());  // No machine has it (RFC 5737).
}

}  // namespace
}  // namespace lockstep
