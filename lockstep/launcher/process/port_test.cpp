// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/port.h"

#include <cerrno>
#include <netinet/in.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/address.h"

namespace lockstep::launcher {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A socket as libuv makes it for torch's TCPStore: SO_REUSEADDR, then bind to every address.
UniqueFd store_socket(int domain, int port) {
  UniqueFd fd(::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const Address address = any_address(port, domain == AF_INET6);
  EXPECT_EQ(::bind(fd.get(), address.get(), address.length), 0) << errno;
  EXPECT_EQ(::listen(fd.get(), 16), 0) << errno;
  return fd;
}

UniqueFd connected_client(int port) {
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Address address = loopback(port);
  EXPECT_EQ(::connect(client.get(), address.get(), address.length), 0) << errno;
  return client;
}

TEST(PortReservation, RankZeroCanListenOnAHeldPort) {
  const PortReservation held = PortReservation::any();
  const UniqueFd store = store_socket(AF_INET, held.port());
  connected_client(held.port());
}

TEST(PortReservation, RankZeroCanListenOnEveryAddressOfBothKinds) {
  const PortReservation held = PortReservation::any();
  const UniqueFd probe(::socket(AF_INET6, SOCK_STREAM, 0));
  if (!probe.is_open()) {
    GTEST_SKIP() << "no IPv6 here";
  }
  const UniqueFd store = store_socket(AF_INET6, held.port());
  connected_client(held.port());
}

TEST(PortReservation, TwoHundredAtOnceAreAllDifferent) {
  std::vector<PortReservation> held;
  std::set<int> ports;
  for (int i = 0; i < 200; ++i) {
    held.push_back(PortReservation::any());
    ports.insert(held.back().port());
  }
  EXPECT_EQ(ports.size(), 200U);
}

TEST(PortReservation, ASearchForAFreePortNeverReturnsAHeldOne) {
  std::vector<PortReservation> held;
  std::set<int> ports;
  for (int i = 0; i < 50; ++i) {
    held.push_back(PortReservation::any());
    ports.insert(held.back().port());
  }
  std::vector<UniqueFd> others;
  for (int i = 0; i < 500; ++i) {
    UniqueFd other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = i % 2;
    ::setsockopt(other.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof(address);
    ASSERT_EQ(::bind(other.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    ASSERT_EQ(::getsockname(other.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(ports.count(ntohs(address.sin_port)), 0U);
    others.push_back(std::move(other));
  }
}

TEST(PortReservation, ABoundPortIsRefusedByNumber) {
  int port = 0;
  {
    const PortReservation held = PortReservation::any();
    port = held.port();
  }
  const UniqueFd listener = store_socket(AF_INET, port);
  EXPECT_THAT(
      [&] { PortReservation::of(port); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr(std::to_string(port)),
          HasSubstr("in use (process " + std::to_string(::getpid()) + ","))));
}

TEST(PortReservation, APortOfAnotherJobIsRefusedUntilItIsReleased) {
  int port = 0;
  {
    const PortReservation first = PortReservation::any();
    port = first.port();
    EXPECT_THAT(
        [&] { PortReservation::of(port); },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr(std::to_string(port)),
            HasSubstr("another lockstep job (process " + std::to_string(::getpid()) + ","))));
  }
  EXPECT_EQ(PortReservation::of(port).port(), port);
}

TEST(PortReservation, APortInTimeWaitIsFree) {
  const int port = PortReservation::any().port();
  {
    const UniqueFd listener = store_socket(AF_INET, port);
    const UniqueFd client = connected_client(port);
    // The side that closes first, here the server's, is left in TIME_WAIT.
    UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    accepted.reset();
    char byte = 0;
    EXPECT_EQ(::read(client.get(), &byte, 1), 0);
  }
  EXPECT_EQ(PortReservation::of(port).port(), port);
}

}  // namespace
}  // namespace lockstep::launcher
