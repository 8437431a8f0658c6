// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/store_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Two hosts of one rank.
std::string text_of_store(const std::string& master_addr) {
  WorldSpec world;
  world.size = 2;
  world.master_addr = master_addr;
  world.master_port = 12345;
  return store_address(world).text();
}

TEST(StoreAddress, is_loopback_where_the_master_is) {
  EXPECT_EQ(text_of_store("localhost"), "127.0.0.1");
  EXPECT_EQ(text_of_store("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(text_of_store("::1"), "::1");
}

TEST(StoreAddress, is_the_masters_and_no_other) {
  for (const std::string& own : interface_addresses()) {
    if (own.find("fe80") == std::string::npos) {  // Which needs its interface's name.
      EXPECT_EQ(text_of_store(own), own);
    }
  }
}

TEST(StoreAddress, that_is_another_machines_is_refused) {
  EXPECT_THAT(
      [] { text_of_store("192.0.2.1"); },  // Of no machine (RFC 5737).
      ::testing::ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("got '192.0.2.1'"), HasSubstr("LOCKSTEP_HOST_ADDR"))));
}

}  // namespace
}  // namespace lockstep::comm
