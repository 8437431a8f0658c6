// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/listener_guard.h"

#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <set>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/log.h"
#include "lockstep/comm/connect/test_connected_ranks.h"

namespace lockstep::comm {
namespace {

using ::testing::HasSubstr;

constexpr int kStrangers = 1100;

sockaddr_in loopback_address(const char* host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

UniqueFd listen_on_loopback() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_in any = loopback_address("127.0.0.1", 0);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
  EXPECT_EQ(::listen(fd.get(), 16), 0);
  return fd;
}

sockaddr_in address_of(int socket) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return address;
}

/// Begins a connection to `to` from the address `host`.
UniqueFd connect_from(const char* host, const sockaddr_in& to) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_in own = loopback_address(host, 0);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
  const int done = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  EXPECT_TRUE(done == 0 || errno == EINPROGRESS);
  return fd;
}

/// Returns whether a connection over loopback succeeded: it does so at once, or its packets are
/// dropped.
bool is_connected(const UniqueFd& fd) {
  pollfd waiting{.fd = fd.get(), .events = POLLOUT, .revents = 0};
  int error = 0;
  socklen_t length = sizeof(error);
  return ::poll(&waiting, 1, 200) == 1 &&
         ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

TEST(ListenerGuard, LetsTheHostsOfTheJobInUntilAllHaveCome) {
  const UniqueFd listener = listen_on_loopback();
  const sockaddr_in address = address_of(listener.get());
  EXPECT_TRUE(is_connected(connect_from("127.0.0.2", address))) << "nothing guards it yet";
  ListenerGuard guard(
      listener.get(), std::vector<std::string>{"10.0.0.1", "::1", "127.0.0.3", "127.0.0.1"});
  EXPECT_FALSE(is_connected(connect_from("127.0.0.2", address)));
  EXPECT_TRUE(is_connected(connect_from("127.0.0.3", address)));
  EXPECT_TRUE(is_connected(connect_from("127.0.0.1", address)));
  guard.close_to_all();
  EXPECT_FALSE(is_connected(connect_from("127.0.0.1", address)));
  EXPECT_EQ(guard.fault(), "");
}

TEST(ListenerGuard, AdmitsOtherAddressesAfterItsTimeoutAndThenFromTheStart) {
  std::atomic<int> warnings = 0;
  set_log_sink([&](const std::string& line) {
    warnings += line.find("connections from all addresses are now accepted") != std::string::npos;
  });
  const std::vector<std::string> hosts = {"127.0.0.1"};
  const UniqueFd first = listen_on_loopback();
  ListenerGuard translated(first.get(), hosts, std::chrono::milliseconds(50));
  while (!translated.admits_all()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(is_connected(connect_from("127.0.0.2", address_of(first.get()))));
  const UniqueFd second = listen_on_loopback();
  ListenerGuard later(second.get(), std::nullopt);
  EXPECT_TRUE(is_connected(connect_from("127.0.0.2", address_of(second.get()))));
  later.close_to_all();
  EXPECT_FALSE(is_connected(connect_from("127.0.0.2", address_of(second.get()))));
  EXPECT_TRUE(later.admits_all());
  translated.close_to_all();
  set_log_sink({});
  EXPECT_EQ(warnings, 1);
}

TEST(ListenerGuard, IdleConnectionsAreNotAccepted) {
  const UniqueFd listener = listen_on_loopback();
  const sockaddr_in address = address_of(listener.get());
  const ListenerGuard guard(listener.get(), std::vector<std::string>{"127.0.0.1"});
  const UniqueFd idle = connect_from("127.0.0.1", address);
  const UniqueFd peer = connect_from("127.0.0.1", address);
  EXPECT_TRUE(is_connected(idle));
  EXPECT_TRUE(is_connected(peer));
  const char byte = 1;
  EXPECT_EQ(::send(peer.get(), &byte, 1, MSG_NOSIGNAL), 1);
  pollfd waiting{.fd = listener.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&waiting, 1, 5000), 1);
  sockaddr_in from{};
  socklen_t length = sizeof(from);
  const UniqueFd accepted(::accept(listener.get(), reinterpret_cast<sockaddr*>(&from), &length));
  EXPECT_EQ(from.sin_port, address_of(peer.get()).sin_port) << "the idle one came first";
  EXPECT_LT(::accept(listener.get(), nullptr, nullptr), 0);
}

TEST(ListenerGuard, AcceptsNoConnectionIfDescriptorsAreScarce) {
  set_log_sink([](const std::string&) {});
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const UniqueFd listener = listen_on_loopback();
  const sockaddr_in address = address_of(listener.get());
  ListenerGuard guard(listener.get(), std::vector<std::string>{"127.0.0.1"});
  EXPECT_TRUE(is_connected(connect_from("127.0.0.1", address)));
  rlimit low = before;
  low.rlim_cur = 128;
  std::vector<UniqueFd> open;
  while (open.empty() || open.back().get() < 120) {
    open.emplace_back(::fcntl(listener.get(), F_DUPFD_CLOEXEC, 0));
  }
  ::setrlimit(RLIMIT_NOFILE, &low);
  while (guard.fault().empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  set_log_sink({});
  EXPECT_THAT(guard.fault(), HasSubstr("more than 112 of 128 file descriptors are in use"));
  EXPECT_FALSE(is_connected(connect_from("127.0.0.1", address)));
}

/// Connects as many strangers as the usual limit on descriptors to every port of a running job.
TEST(GlooGroup, StrangersAtItsPortsHaveNoEffect) {
  std::set<ino_t> before;
  for (const auto& [inode, fd] : listening_sockets()) {
    before.insert(inode);
  }
  gloo_ranks(2, [&](Group group) {
    group.barrier();
    if (group.rank() == 0) {
      std::vector<UniqueFd> strangers;
      int guarded = 0;
      for (const auto& [inode, fd] : listening_sockets()) {
        const bool is_gloo = !before.contains(inode) && address_of(fd).sin_port != 0;
        if (is_gloo && !is_connected(connect_from("127.0.0.1", address_of(fd)))) {
          ++guarded;
          for (int i = 0; i < kStrangers; ++i) {
            strangers.push_back(connect_from("127.0.0.1", address_of(fd)));
          }
          EXPECT_FALSE(is_connected(strangers.back()));
        }
      }
      EXPECT_EQ(guarded, 2) << "each rank's port, and not the store's";
    }
    group.barrier();
    Group part = group.split(0);
    part.barrier();
  });
}

}  // namespace
}  // namespace lockstep::comm
