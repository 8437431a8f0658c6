// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/rendezvous.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/join_responder.h"
#include "lockstep/comm/shm/local_socket.h"

namespace lockstep::comm::shm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::string new_name() {
  static std::atomic<int> names{0};
  return "lockstep/test/" + std::to_string(::getpid()) + "/" + std::to_string(names++);
}

struct Rank {
  int rank;
  int size;
  std::string error;  ///< Empty if it joined.
  std::shared_ptr<Segment> segment;
};

/// Runs the rendezvous of `ranks`, each in its own thread.
void join_all(const std::string& name, std::vector<Rank>& ranks, int timeout_ms) {
  std::vector<std::thread> threads;
  for (Rank& each : ranks) {
    threads.emplace_back([&] {
      try {
        each.segment = rendezvous(
            {.name = name, .rank = each.rank, .size = each.size}, Milliseconds(timeout_ms));
      } catch (const std::exception& error) {
        each.error = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

std::vector<std::string> errors_of(std::vector<Rank> ranks, int timeout_ms) {
  join_all(new_name(), ranks, timeout_ms);
  std::vector<std::string> errors;
  for (const Rank& each : ranks) {
    errors.push_back(each.error);
  }
  return errors;
}

TEST(Rendezvous, GivesAllTheSameMemoryAndLeavesNoName) {
  const std::string name = new_name();
  std::vector<Rank> ranks{{2, 3, "", {}}, {0, 3, "", {}}, {1, 3, "", {}}};
  join_all(name, ranks, 20'000);
  for (const Rank& each : ranks) {
    ASSERT_TRUE(each.segment) << each.error;
  }
  ranks[0].segment->control(1).published.store(77);
  EXPECT_EQ(ranks[1].segment->control(1).published.load(), 77U);
  EXPECT_EQ(ranks[2].segment->control(1).published.load(), 77U);
  std::ifstream sockets("/proc/net/unix");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(sockets), {}), Not(HasSubstr(name)));
}

TEST(Rendezvous, AMissingRankIsNamedToAll) {
  EXPECT_THAT(
      errors_of({{0, 4, "", {}}, {2, 4, "", {}}}, 300),
      Each(HasSubstr("ranks 1, 3 did not join within 0.3 s")));
  EXPECT_THAT(errors_of({{1, 2, "", {}}}, 200), Each(HasSubstr("rank 0 did not answer")));
}

TEST(Rendezvous, WorldsOfDifferentSizeAreRefused) {
  EXPECT_THAT(
      errors_of({{0, 2, "", {}}, {1, 3, "", {}}}, 20'000),
      Each(AllOf(HasSubstr("different world sizes"), HasSubstr("got 3 on rank 1"))));
}

TEST(Rendezvous, ARankClaimedTwiceIsRefused) {
  EXPECT_THAT(
      errors_of({{0, 3, "", {}}, {1, 3, "", {}}, {1, 3, "", {}}}, 20'000),
      Each(HasSubstr("two processes are rank 1")));
}

/// Returns the errors of rank 0 of `mine` over shared memory and of another rank that joins over
/// Gloo.
std::vector<std::string> errors_of_both(RendezvousAddress mine, RendezvousAddress asking) {
  mine.name = new_name();
  asking.name = mine.name;
  std::vector<std::string> errors(2);
  std::thread host([&] {
    try {
      rendezvous(mine, std::chrono::seconds(60));
    } catch (const CommError& error) {
      errors[0] = error.what();
    }
  });
  while (errors[1].empty()) {
    errors[1] = ask_shm_rank_0(asking);
  }
  host.join();
  return errors;
}

TEST(Rendezvous, ARankThatJoinsOverGlooIsRefusedAtOnce) {
  EXPECT_THAT(
      errors_of_both({.name = "", .size = 2}, {.name = "", .rank = 1, .size = 2, .comm = "gloo"}),
      Each(HasSubstr("LOCKSTEP_COMM differs between ranks; got gloo on rank 1, auto on rank 0")));
  EXPECT_THAT(
      errors_of_both({.name = "", .size = 2}, {.name = "", .rank = 1, .size = 3}),
      Each(AllOf(HasSubstr("different world sizes"), HasSubstr("got 3 on rank 1"))));
  EXPECT_THAT(
      errors_of_both(
          {.name = "", .size = 2, .local_size = 2},
          {.name = "", .rank = 1, .size = 2, .local_size = 1}),
      Each(AllOf(
          HasSubstr("rank 1 joins over Gloo (WORLD_SIZE 2, LOCAL_WORLD_SIZE 1, LOCKSTEP_COMM auto"),
          HasSubstr("rank 0 over shared memory (WORLD_SIZE 2, LOCAL_WORLD_SIZE 2"))));
}

TEST(Rendezvous, RanksWhoseCommDiffersAreRefusedAtOnce) {
  const std::string name = new_name();
  std::string failure;
  std::thread host([&] {
    try {
      rendezvous({.name = name, .size = 2}, std::chrono::seconds(60));
    } catch (const CommError& error) {
      failure = error.what();
    }
  });
  EXPECT_THROW(
      rendezvous({.name = name, .rank = 1, .size = 2, .comm = "shm"}, std::chrono::seconds(60)),
      CommError);
  host.join();
  EXPECT_THAT(failure, HasSubstr("got shm on rank 1, auto on rank 0"));
}

TEST(Rendezvous, ARank0ThatJoinsOverGlooAnswersTheOthers) {
  const RendezvousAddress place{.name = new_name(), .size = 2};
  JoinResponder rank_0(place);
  EXPECT_EQ(rank_0.answer(), "") << "nobody waits";
  std::string failure;
  std::thread other([&] {
    RendezvousAddress same = place;
    same.rank = 1;
    try {
      rendezvous(same, std::chrono::seconds(60));
    } catch (const CommError& error) {
      failure = error.what();
    }
  });
  std::string reported;
  while (reported.empty()) {
    reported = rank_0.answer();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  other.join();
  EXPECT_THAT(reported, HasSubstr("rank 1 joins over shared memory"));
  EXPECT_THAT(failure, HasSubstr(reported));
}

TEST(Rendezvous, AJobOfSeveralHostsWithTheSamePortDisturbsNoRank) {
  const std::string name = new_name();
  const RendezvousAddress several{.name = name, .size = 4, .master_addr = "10.0.0.1"};
  JoinResponder rank_0_of_several(several);
  std::atomic<bool> met = false;
  std::thread several_ranks([&] {
    RendezvousAddress rank_3 = several;
    rank_3.rank = 3;
    while (!met) {
      EXPECT_EQ(ask_shm_rank_0(rank_3), "");
      EXPECT_EQ(rank_0_of_several.answer(), "");
    }
  });
  // One rank spells the address differently, which does not matter without Gloo.
  std::thread rank_1([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    rendezvous(
        {.name = name, .rank = 1, .size = 2, .master_addr = "localhost"}, std::chrono::seconds(60));
  });
  EXPECT_NO_THROW(
      rendezvous({.name = name, .size = 2, .master_addr = "127.0.0.1"}, std::chrono::seconds(60)));
  rank_1.join();
  met = true;
  several_ranks.join();
}

TEST(Rendezvous, APlaceThatIsTakenIsNamedAtOnce) {
  const std::string name = new_name();
  const UniqueFd other = listen_local(name);
  try {
    rendezvous({.name = name, .rank = 0, .size = 2}, std::chrono::seconds(60));
    FAIL() << "somebody listens there";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(name), HasSubstr("MASTER_PORT")));
  }
}

/// Returns the Hello of a rank: mark, rank, size, pid, local size, not over Gloo, no MASTER_ADDR,
/// "auto".
std::array<int32_t, 9> raw_hello(int rank, int size) {
  return {0x336d6b6c, rank, size, ::getpid(), 0, 0, 0, 0x6f747561, 0};
}

/// Runs `body` in another process, of another user or of this one.
template <typename Body>
pid_t in_another_process(bool as_nobody, const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (as_nobody && (::setgid(65534) != 0 || ::setuid(65534) != 0)) {
      ::_exit(3);
    }
    body();
    ::_exit(0);
  }
  return child;
}

TEST(Rendezvous, StrangersAnotherUserAndSilentConnectionsDisturbNoRank) {
  const std::string name = new_name();
  std::vector<Rank> ranks{{0, 2, "", {}}};
  std::thread host([&] { join_all(name, ranks, 20'000); });
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 50;) {
    UniqueFd connection = connect_local(name);
    if (connection.is_open()) {
      if (i % 2 == 0) {
        const std::array<char, 16> garbage{"GET / HTTP/1.1"};
        send_message(connection.get(), garbage.data(), garbage.size());
      }
      idle.push_back(std::move(connection));
      ++i;
    }
  }
  if (::geteuid() == 0) {
    const pid_t child = in_another_process(true, [&] {
      UniqueFd connection = connect_local(name);
      const auto hello = raw_hello(1, 2);
      send_message(connection.get(), hello.data(), sizeof(hello));
      std::array<char, 1004> answer{};
      const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      const bool served = readable(connection.get(), soon) &&
                          receive_message(connection.get(), answer.data(), answer.size());
      ::_exit(served ? 1 : 0);
    });
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0) << "another user was given the memory";
  }
  std::vector<Rank> late{{1, 2, "", {}}};
  join_all(name, late, 20'000);
  host.join();
  EXPECT_TRUE(ranks[0].segment) << ranks[0].error;
  EXPECT_TRUE(late[0].segment) << late[0].error;
}

TEST(Rendezvous, ARankThatDiesOnTheWayIsNamedBeforeAnyTimeout) {
  const std::string name = new_name();
  const pid_t child = in_another_process(false, [&] {
    UniqueFd connection;
    while (!connection.is_open()) {
      connection = connect_local(name);
    }
    const auto hello = raw_hello(2, 3);
    send_message(connection.get(), hello.data(), sizeof(hello));
    ::usleep(100'000);
  });
  std::vector<Rank> ranks{{0, 3, "", {}}};
  join_all(name, ranks, 60'000);
  EXPECT_THAT(ranks[0].error, HasSubstr("rank 2 ended before all ranks had joined"));
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace lockstep::comm::shm
