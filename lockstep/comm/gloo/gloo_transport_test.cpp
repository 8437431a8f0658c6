// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/gloo_transport.h"

#include <arpa/inet.h>
#include <array>
#include <fstream>
#include <netinet/in.h>
#include <sstream>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <tuple>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/comm/connect/connect.h"
#include "lockstep/comm/connect/test_connected_ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

/// Holds a loopback port with a listener; once closed, the port is free.
class Port {
 public:
  Port() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::ignore = ::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    std::ignore = ::listen(fd_, 1);
    socklen_t length = sizeof(address);
    std::ignore = ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    number_ = ntohs(address.sin_port);
  }
  ~Port() { close(); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  int number() const { return number_; }
  void close() {
    if (fd_ >= 0) {
      ::close(fd_);
      fd_ = -1;
    }
  }

 private:
  int fd_;
  int number_ = 0;
};

WorldSpec world_of(int rank, int size, int port) {
  WorldSpec world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.master_port = port;
  return world;
}

Group join(const WorldSpec& world, int join_timeout_ms = 30'000) {
  return connect(
      world,
      {.join_timeout = comm::Milliseconds(join_timeout_ms), .transport = TransportKind::kGloo});
}

template <typename Expected>
std::string join_error(const WorldSpec& world, int join_timeout_ms) {
  return error_of<Expected>([&] { join(world, join_timeout_ms); });
}

TEST(GlooJoin, ATakenPortIsNamedAtOnce) {
  Port taken;
  EXPECT_THAT(
      join_error<ConfigError>(world_of(0, 2, taken.number()), 60000),
      AllOf(HasSubstr(std::to_string(taken.number())), HasSubstr("MASTER_PORT")));
}

TEST(GlooJoin, MissingRanksAreNamed) {
  Port port;
  port.close();
  EXPECT_THAT(
      join_error<CommError>(world_of(0, 4, port.number()), 300),
      HasSubstr("ranks 1, 2, 3 did not join"));
}

TEST(GlooJoin, AnUnreachableStoreIsNamed) {
  Port port;
  port.close();
  EXPECT_THAT(
      join_error<CommError>(world_of(1, 2, port.number()), 300),
      HasSubstr("rank 0's store did not answer at 127.0.0.1:" + std::to_string(port.number())));
}

TEST(GlooJoin, WorldsOfDifferentSizeAreRefused) {
  Port port;
  port.close();
  std::string other;
  std::thread second([&] { other = join_error<CommError>(world_of(1, 3, port.number()), 2000); });
  const std::string first = join_error<CommError>(world_of(0, 2, port.number()), 2000);
  second.join();
  EXPECT_THAT(first + other, HasSubstr("the ranks have different world sizes"));
}

TEST(GlooJoin, ARankClaimedTwiceIsRefused) {
  Port port;
  port.close();
  std::string a, b, c;
  std::thread one([&] { a = join_error<CommError>(world_of(1, 3, port.number()), 3000); });
  std::thread two([&] { b = join_error<CommError>(world_of(1, 3, port.number()), 3000); });
  c = join_error<CommError>(world_of(0, 3, port.number()), 3000);
  one.join();
  two.join();
  EXPECT_THAT(a + b, HasSubstr("two processes are rank 1"));
  EXPECT_THAT(c, HasSubstr("rank 2 did not join"));
}

TEST(GlooJoin, AProcessMayJoinAgainWhileItHasAGroup) {
  Port port;
  port.close();
  const auto join_three_times = [&](int rank) {
    std::vector<Group> groups;
    for (int i = 0; i < 3; ++i) {
      groups.push_back(join(world_of(rank, 2, port.number())));
      if (i == 1) {
        groups.erase(groups.begin());  // Rank 0 still serves the store of the first join.
      }
      for (Group& group : groups) {
        EXPECT_EQ(group.all_reduce(at::full({2}, rank + 1)).wait()[0].item<float>(), 3.0F);
      }
    }
  };
  std::thread second([&] { join_three_times(1); });
  join_three_times(0);
  second.join();
}

TEST(GlooJoin, AProcessMayJoinAgainAtOnceAfterItsGroup) {
  Port port;
  port.close();
  const auto join_often = [&](int rank) {
    for (int i = 0; i < 20; ++i) {
      const Group group = join(world_of(rank, 2, port.number()));
      EXPECT_EQ(group.size(), 2);
    }
  };
  std::thread second([&] { join_often(1); });
  join_often(0);
  second.join();
}

TEST(GlooJoin, AFailedJoinMayBeTriedAgain) {
  Port port;
  port.close();
  const auto join_together = [&] {
    std::thread second([&] { join(world_of(1, 2, port.number())); });
    join(world_of(0, 2, port.number()));
    second.join();
  };
  join_together();
  EXPECT_THAT(
      join_error<CommError>(world_of(0, 2, port.number()), 300), HasSubstr("rank 1 did not join"));
  join_together();
}

/// Returns the local addresses on which this process listens, from the kernel's table.
std::string listening_addresses() {
  std::ostringstream found;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state;
      fields >> slot >> local >> remote >> state;
      if (state == "0A") {
        found << local << "\n";
      }
    }
  }
  return found.str();
}

TEST(GlooJoin, RanksOfOneHostListenOnLoopbackOnly) {
  const std::string before = listening_addresses();
  gloo_ranks(2, [&](Group group) {
    group.barrier();
    std::istringstream lines(listening_addresses());
    std::string line;
    while (std::getline(lines, line)) {
      if (before.find(line) == std::string::npos) {
        EXPECT_EQ(line.substr(0, 8), "0100007F") << "listens beyond 127.0.0.1: " << line;
      }
    }
    group.barrier();
  });
}

TEST(GlooGroup, OneThatLostAPeerNamesItAndStaysFailed) {
  gloo_ranks(3, [](Group group) {
    group.barrier();
    if (group.rank() == 2) {
      return;  // Leaves, and its connections with it.
    }
    int peer = -1;
    std::string first;
    try {
      group.recv(at::zeros({1}), 2).wait();
    } catch (const CommError& error) {
      first = error.what();
      peer = error.peer();
    }
    EXPECT_THAT(
        first,
        AllOf(
            HasSubstr("a rank is lost, or did not call the operation"),
            ContainsRegex("the connection to rank 2 at [0-9.]+ was (closed|reset)")));
    EXPECT_EQ(peer, 2);
    EXPECT_THROW(
        {
          try {
            group.barrier();
          } catch (const CommError& error) {
            EXPECT_THAT(error.what(), HasSubstr("the group failed earlier"));
            throw;
          }
        },
        CommError);
  });
}

TEST(GlooGroup, ReduceScatterAddsInRankOrderAndRoundsOnce) {
  // As over shared memory: 1e8 swallows the ones one by one.
  gloo_ranks(3, [](Group group) {
    const std::array<float, 3> values{1e8F, 1.0F, 1.0F};
    const at::Tensor own = at::full({3000}, values[static_cast<size_t>(group.rank())]);
    EXPECT_TRUE(at::equal(group.reduce_scatter(own).wait(), at::full({1000}, 1e8F)));
    // 257 is not a bfloat16, but the sum of the three is.
    const std::array<float, 3> narrow{256.0F, 1.0F, 1.0F};
    const at::Tensor bf16 =
        at::full({3000}, narrow[static_cast<size_t>(group.rank())], at::kBFloat16);
    EXPECT_EQ(group.reduce_scatter(bf16).wait()[999].item<float>(), 258.0F);
    const at::Tensor large = at::full({3000}, 60'000.0F, at::kHalf);
    EXPECT_EQ(
        group.reduce_scatter(large, ReduceOp::kAvg).wait()[0].item<float>(),
        large[0].item<float>());
  });
}

TEST(ConnectOptions, AreReadFromTheEnvironment) {
  const auto options = ConnectOptions::from_environment(Environment::of(
      {{"LOCKSTEP_TIMEOUT_MS", "1500"},
       {"LOCKSTEP_JOIN_TIMEOUT_MS", "20"},
       {"LOCKSTEP_COMM", "shm"}}));
  EXPECT_EQ(options.transport, TransportKind::kShm);
  EXPECT_EQ(ConnectOptions::from_environment(Environment::of({})).transport, TransportKind::kAuto);
  EXPECT_EQ(options.timeout.count(), 1500);
  EXPECT_EQ(options.join_timeout.count(), 20);
  EXPECT_THROW(
      ConnectOptions::from_environment(Environment::of({{"LOCKSTEP_TIMEOUT_MS", "0"}})),
      ConfigError);
  EXPECT_THROW(
      ConnectOptions::from_environment(Environment::of({{"LOCKSTEP_COMM", "nccl2"}})), ConfigError);
}

TEST(Connect, SharedMemoryIsRefusedWhereRanksAreOnSeveralHosts) {
  WorldSpec world = world_of(0, 4, 1);
  world.local_size = 2;
  try {
    connect(world, {.transport = TransportKind::kShm});
    FAIL() << "two hosts share no memory";
  } catch (const ConfigError& error) {
    EXPECT_THAT(
        error.what(), AllOf(HasSubstr("4 ranks, 2 of them on this host"), HasSubstr("auto")));
  }
}

}  // namespace
}  // namespace lockstep
