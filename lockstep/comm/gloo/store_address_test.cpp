// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/store_address.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/base/log.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Returns the store's address in a world of two hosts with one rank each.
std::string text_of_store(const std::string& master_addr) {
  WorldSpec world;
  world.size = 2;
  world.master_addr = master_addr;
  world.master_port = 12345;
  return store_address(world, std::chrono::steady_clock::now()).host();
}

TEST(StoreAddress, IsLoopbackWhereTheMasterIs) {
  EXPECT_EQ(text_of_store("localhost"), "127.0.0.1");
  EXPECT_EQ(text_of_store("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(text_of_store("::1"), "::1");
}

TEST(StoreAddress, IsTheMastersAndNoOther) {
  for (const std::string& own : interface_addresses()) {
    if (own.find("fe80") == std::string::npos) {  // Which needs its interface's name.
      EXPECT_EQ(text_of_store(own), own);
    }
  }
}

TEST(StoreAddress, ThatIsAnotherMachinesIsRefused) {
  EXPECT_THAT(
      [] { text_of_store("192.0.2.1"); },  // Of no machine (RFC 5737).
      ::testing::ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("got '192.0.2.1'"), HasSubstr("LOCKSTEP_HOST_ADDR"))));
}

TEST(StoreAddress, OfAnUnknownNameIsRefusedInTheEnd) {
  EXPECT_THAT(
      [] { text_of_store("nobody.invalid"); },
      ::testing::ThrowsMessage<ConfigError>(
          HasSubstr("MASTER_ADDR cannot be resolved; got 'nobody.invalid'")));
}

/// Runs `check` in a process where the name of this machine means 127.0.1.1, as on Debian. Exits
/// with 0 if it holds, 77 if this system does not allow a private /etc/hosts.
[[noreturn]] void run_where_name_is_loopback(const std::function<bool()>& check) {
  {
    const TestFolder folder;
    const std::string hosts = folder / "hosts";
    std::ofstream(hosts) << "127.0.1.1 node0.test\n";
    if ((::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        ::mount(hosts.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
      ::_exit(77);
    }
  }
  ::_exit(check() ? 0 : 1);
}

TEST(StoreAddress, ThatResolvesToLoopbackIsReplacedByRank0sAddressOrAWarning) {
  // One process per case, since a mount cannot be undone in a test program.
  const auto warned = [] {
    run_where_name_is_loopback([] {
      std::string warning;
      set_log_sink([&](const std::string& line) { warning += line; });
      return text_of_store("node0.test") == "127.0.1.1" &&
             warning.find("MASTER_ADDR 'node0.test' resolves to 127.0.1.1") != std::string::npos &&
             warning.find("set LOCKSTEP_HOST_ADDR on rank 0") != std::string::npos;
    });
  };
  const auto configured = [] {
    run_where_name_is_loopback([] {
      const std::string own = *interface_addresses().begin();
      ::setenv("LOCKSTEP_HOST_ADDR", own.c_str(), 1);
      return text_of_store("node0.test") == own;
    });
  };
  const auto may_mount = [](int status) {
    return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
  };
  EXPECT_EXIT(warned(), may_mount, "");
  if (!interface_addresses().empty()) {
    EXPECT_EXIT(configured(), may_mount, "");
  }
}

}  // namespace
}  // namespace lockstep::comm
