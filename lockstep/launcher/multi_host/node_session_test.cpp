// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/node_session.h"

#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/address.h"

namespace lockstep::launcher {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

UniqueFd listen_at_loopback(int port = 0) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Address address = loopback(port);
  EXPECT_EQ(::bind(fd.get(), address.get(), address.length), 0);
  EXPECT_EQ(::listen(fd.get(), 10), 0);
  return fd;
}

int free_port() {
  return own_address(listen_at_loopback().get()).port();
}

/// Two hosts of two ranks each, connected at loopback.
JobPlan plan_of(size_t here, int port, int hosts = 2) {
  JobPlan plan;
  for (int host = 0; host < hosts; ++host) {
    plan.hosts.push_back({.name = "", .slots = {0, 1}, .first_rank = 2 * host});
  }
  plan.here = here;
  plan.common.nodes = hosts;
  plan.common.world_size = 2 * hosts;
  plan.common.master_port = port;
  plan.common.run_id = "run of node " + std::to_string(here);
  return plan;
}

NodeResult result_of_killed_rank(int rank, const std::string& host, int signal) {
  FailureReport report;
  report.cause = {.rank = rank, .pid = 77, .exit_status = {.by_signal = true, .value = signal}};
  report.host = host;
  report.last_lines = {"last words"};
  return {.exit_code = 128 + signal, .failure = report, .may_restart = true};
}

/// A launcher in its own thread.
class Node {
 public:
  Node(
      size_t here,
      int port,
      NodeOptions options,
      int hosts = 2,
      const std::string& master_addr = "127.0.0.1")
      : plan_(plan_of(here, port, hosts)) {
    plan_.common.master_addr = master_addr;
    options.token = options.token.empty() ? "0123456789abcdef" : options.token;
    session_ = NodeSession::make(
        reactor_, plan_, options, [this](const std::string& text) { said_.push_back(text); });
  }

  NodeSession& session() { return *session_; }
  const std::vector<std::string>& said() const { return said_; }
  bool join(const std::function<bool()>& is_cancelled = [] { return false; }) {
    return session_->join(is_cancelled);
  }
  /// Runs the session until `done`. Returns false after a timeout.
  bool run_until(const std::function<bool()>& done) {
    const auto end = Clock::now() + 30s;
    bool is_done = done();
    while (!is_done && Clock::now() < end) {
      reactor_.wait(20ms);
      reactor_.dispatch();
      is_done = done();
    }
    return is_done;
  }
  JobResult conclude(const NodeResult& result) {
    session_->report_result(result);
    EXPECT_TRUE(run_until([&] { return session_->job_result().has_value(); }));
    return session_->job_result().value_or(JobResult{.exit_code = -1});
  }
  /// Runs the session until the other hosts end the job.
  std::string await_stop() {
    EXPECT_TRUE(run_until([&] { return session_->stop().has_value(); }));
    return session_->stop().value_or("");
  }
  void leave() { session_.reset(); }

 private:
  JobPlan plan_;
  Reactor reactor_;
  std::vector<std::string> said_;
  std::unique_ptr<NodeSession> session_;
};

/// Runs both launchers, each in a thread: first node 0 is made, so that the port is its own.
void run_both(
    const std::function<void(Node&)>& coordinator,
    const std::function<void(Node&)>& member,
    const NodeOptions& options = {}) {
  const int port = free_port();
  Node first(0, port, options);
  auto second = std::async(std::launch::async, [&] {
    Node node(1, port, options);
    ASSERT_TRUE(node.join());
    node.session().begin_attempt();
    member(node);
  });
  ASSERT_TRUE(first.join());
  first.session().begin_attempt();
  coordinator(first);
  second.get();
}

TEST(NodeSession, EndsWhenAllHostsHave) {
  const auto ends_well = [](Node& node) {
    const JobResult job_result = node.conclude({.exit_code = 0});
    EXPECT_EQ(job_result.exit_code, 0);
    EXPECT_EQ(job_result.cause, "");
    EXPECT_FALSE(job_result.restart);
  };
  run_both(ends_well, ends_well);
}

TEST(NodeSession, TakesTheExitCodeOfRanksThatSaved) {
  run_both(
      [](Node& node) { EXPECT_EQ(node.conclude({.exit_code = 75}).exit_code, 75); },
      [](Node& node) { EXPECT_EQ(node.conclude({.exit_code = 0}).exit_code, 75); });
}

TEST(NodeSession, EndsOnAllHostsWhenARankOfOneFails) {
  run_both(
      [](Node& node) {
        EXPECT_EQ(node.await_stop(), "rank 3 on hostb was killed by SIGKILL (signal 9)");
        const JobResult job_result = node.conclude({.exit_code = 143});
        EXPECT_EQ(job_result.exit_code, 137);
        ASSERT_TRUE(job_result.failure);
        EXPECT_EQ(job_result.failure->ranks, 4);
        EXPECT_EQ(job_result.failure->host, "hostb");
        EXPECT_EQ(job_result.failure->last_lines, std::vector<std::string>{"last words"});
      },
      [](Node& node) {
        const NodeResult result = result_of_killed_rank(3, "hostb", SIGKILL);
        node.session().report_failure(result);
        const JobResult job_result = node.conclude(result);
        EXPECT_EQ(job_result.exit_code, 137);
        EXPECT_THAT(job_result.cause, HasSubstr("rank 3 on hostb was killed by SIGKILL"));
      });
}

TEST(NodeSession, BlamesTheRankThatWasKilledNotThePeersItTookAlong) {
  NodeResult consequence = result_of_killed_rank(0, "hosta", 0);
  consequence.failure->cause.exit_status = {.by_signal = false, .value = 1};
  consequence.exit_code = 1;
  run_both(
      [&](Node& node) {
        node.session().report_failure(consequence);
        const JobResult job_result = node.conclude(consequence);
        EXPECT_EQ(job_result.exit_code, 137);
        EXPECT_EQ(job_result.failure->cause.rank, 2);
      },
      [](Node& node) {
        EXPECT_EQ(node.conclude(result_of_killed_rank(2, "hostb", SIGKILL)).exit_code, 137);
      });
}

TEST(NodeSession, RestartsAtMostTheAllowedNumberOfTimes) {
  const auto coordinator = [](Node& node) {
    const NodeResult failed = result_of_killed_rank(0, "hosta", SIGKILL);
    EXPECT_TRUE(node.conclude(failed).restart);
    node.session().begin_attempt();
    EXPECT_FALSE(node.conclude(failed).restart);
  };
  const auto member = [](Node& node) {
    EXPECT_TRUE(node.conclude({.exit_code = 143}).restart);
    node.session().begin_attempt();
    EXPECT_FALSE(node.conclude({.exit_code = 143}).restart);
  };
  run_both(coordinator, member, {.max_restarts = 1});
}

TEST(NodeSession, ReceivesAMessageOfTheNextAttemptBeforeItsOwnBegins) {
  std::promise<void> told;
  const NodeResult failed = result_of_killed_rank(2, "hostb", SIGKILL);
  run_both(
      [&](Node& node) {
        EXPECT_TRUE(node.conclude({.exit_code = 143}).restart);
        told.get_future().wait();
        node.run_until([deadline = Clock::now() + 100ms] { return Clock::now() >= deadline; });
        EXPECT_FALSE(node.session().stop());
        node.session().begin_attempt();
        EXPECT_THAT(node.await_stop(), HasSubstr("rank 2 on hostb"));
        EXPECT_EQ(node.conclude({.exit_code = 143}).exit_code, 137);
      },
      [&](Node& node) {
        EXPECT_TRUE(node.conclude(failed).restart);
        node.session().begin_attempt();
        node.session().report_failure(failed);
        told.set_value();
        EXPECT_EQ(node.conclude(failed).exit_code, 137);
      },
      {.max_restarts = 1});
}

TEST(NodeSession, PassesSignalsToTheOtherHosts) {
  const auto hears = [](Node& node, int signal) {
    std::optional<NodeSignal> heard;
    EXPECT_TRUE(node.run_until([&] {
      heard = node.session().next_signal();
      return heard.has_value();
    }));
    EXPECT_EQ(heard->signal, signal);
    EXPECT_EQ(heard->is_repeated, signal == SIGUSR1);
  };
  run_both(
      [&](Node& node) {
        hears(node, SIGUSR1);
        node.session().report_signal({.signal = SIGINT});
        EXPECT_EQ(node.conclude({.exit_code = 130}).exit_code, 130);
      },
      [&](Node& node) {
        node.session().report_signal({.signal = SIGUSR1, .is_repeated = true});
        hears(node, SIGINT);
        EXPECT_EQ(node.conclude({.exit_code = 130}).exit_code, 130);
      });
}

TEST(NodeSession, EndsIfNode0IsLost) {
  run_both(
      [](Node& node) { node.leave(); },
      [](Node& node) {
        EXPECT_THAT(node.await_stop(), HasSubstr("the launcher of node 0 (127.0.0.1) is lost"));
        const JobResult job_result = node.conclude({.exit_code = 143});
        EXPECT_EQ(job_result.exit_code, 1);
        EXPECT_THAT(job_result.cause, HasSubstr("the launcher of node 0 (127.0.0.1) is lost"));
      });
}

TEST(NodeSession, EndsIfAnotherLauncherIsLost) {
  run_both(
      [](Node& node) {
        EXPECT_THAT(node.await_stop(), HasSubstr("the launcher of node 1"));
        const JobResult job_result = node.conclude({.exit_code = 143});
        EXPECT_EQ(job_result.exit_code, 1);
        EXPECT_THAT(job_result.cause, AllOf(HasSubstr("node 1"), HasSubstr("is lost")));
        EXPECT_FALSE(job_result.restart);
      },
      [](Node& node) { node.leave(); },
      {.max_restarts = 5});
}

/// Its process is stopped: the connection stays.
TEST(NodeSession, EndsWith124WhenAnotherLauncherIsSilent) {
  for (const int silent : {0, 1}) {
    std::promise<void> ended;
    const auto is_silent = [&](Node& /*node*/) { ended.get_future().wait(); };
    const auto hears_nothing = [&](Node& node) {
      const std::string named = "the launcher of node " + std::to_string(silent) + " (";
      const std::string why = node.await_stop();
      EXPECT_THAT(why, AllOf(HasSubstr(named), HasSubstr("is stopped or hangs: it sent nothing")));
      EXPECT_EQ(node.conclude({.exit_code = 143}).exit_code, kExitTimedOut);
      ended.set_value();
    };
    run_both(
        [&](Node& node) { silent == 0 ? is_silent(node) : hears_nothing(node); },
        [&](Node& node) { silent == 1 ? is_silent(node) : hears_nothing(node); },
        {.stall_timeout_seconds = 0.1});
  }
}

TEST(NodeSession, MindsNoSilentLauncherWhileTheJobIsPaused) {
  run_both(
      [&](Node& node) {
        node.session().report_signal({.signal = SIGTSTP});
        std::this_thread::sleep_for(3s);  // As if it were stopped.
        node.session().report_signal({.signal = SIGCONT});
        EXPECT_EQ(node.conclude({.exit_code = 0}).exit_code, 0);
      },
      [&](Node& node) {
        for (const int signal : {SIGTSTP, SIGCONT}) {
          std::optional<NodeSignal> heard;
          EXPECT_TRUE(node.run_until([&] {
            heard = node.session().next_signal();
            return heard || node.session().stop();
          }));
          ASSERT_TRUE(heard) << node.session().stop().value_or("");
          EXPECT_EQ(heard->signal, signal);
        }
        EXPECT_EQ(node.conclude({.exit_code = 0}).exit_code, 0);
      },
      {.stall_timeout_seconds = 0.1});
}

TEST(NodeSession, CarriesRanksToTheStoreAlsoBeforeItIsServed) {
  run_both(
      [](Node& node) {
        const int port = free_port();
        node.session().store_port(port);
        // Its first attempts to connect fail.
        node.run_until([end = Clock::now() + 100ms] { return Clock::now() >= end; });
        const UniqueFd store = listen_at_loopback(port);
        auto served = std::async(std::launch::async, [&] {
          const UniqueFd rank(::accept4(store.get(), nullptr, nullptr, SOCK_CLOEXEC));
          char text[6] = {};
          EXPECT_EQ(::recv(rank.get(), text, 5, MSG_WAITALL), 5);
          EXPECT_STREQ(text, "hello");
          EXPECT_EQ(::send(rank.get(), "you too", 7, 0), 7);
        });
        EXPECT_EQ(node.conclude({.exit_code = 0}).exit_code, 0);
        served.get();
        EXPECT_EQ(node.session().host_address(), "127.0.0.1");
      },
      [](Node& node) {
        const int port = node.session().store_port(0);
        auto rank = std::async(std::launch::async, [port] {
          const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
          const Address address = loopback(port);
          EXPECT_EQ(::connect(fd.get(), address.get(), address.length), 0);
          EXPECT_EQ(::send(fd.get(), "hello", 5, 0), 5);
          char text[8] = {};
          EXPECT_EQ(::recv(fd.get(), text, 7, MSG_WAITALL), 7);
          EXPECT_STREQ(text, "you too");
        });
        EXPECT_TRUE(node.run_until([&] { return rank.wait_for(0s) == std::future_status::ready; }));
        EXPECT_EQ(node.conclude({.exit_code = 0}).exit_code, 0);
      });
}

TEST(NodeSession, NamesTheNodesThatDoNotCome) {
  Node first(0, free_port(), {.join_timeout_seconds = 0.2}, 3);
  EXPECT_THAT(
      [&] { first.join(); },
      testing::ThrowsMessage<Error>(AllOf(
          HasSubstr("nodes 1, 2 of 3 did not connect to 127.0.0.1"), HasSubstr("within 0.2 s"))));
}

TEST(NodeSession, HasTheRunIdOfNode0) {
  run_both(
      [](Node& node) {
        EXPECT_EQ(node.session().run_id(), "run of node 0");
        node.conclude({});
      },
      [](Node& node) {
        EXPECT_EQ(node.session().run_id(), "run of node 0");
        node.conclude({});
      });
}

TEST(NodeSession, DoesNotWaitForOthersOnceItIsCalledOff) {
  const int port = free_port();
  Node first(0, port, {});
  EXPECT_FALSE(first.join([] { return true; }));
  Node second(1, port, {}, 3);  // Node 2 is missing.
  EXPECT_FALSE(second.join([] { return true; }));
}

TEST(NodeSession, EndsWith124OnAllHostsWhenTheTimeIsUpOnOne) {
  const auto ends = [](Node& node) {
    // One host ends at its time limit, the other at the signal that follows.
    const JobResult job_result = node.conclude(result_of_killed_rank(2, "a", SIGTERM));
    EXPECT_EQ(job_result.exit_code, kExitTimedOut);
    EXPECT_EQ(job_result.cause, "it reached its time limit of 5 s");
    EXPECT_FALSE(job_result.restart);
  };
  const auto hears = [](Node& node) {
    EXPECT_TRUE(node.run_until([&] { return node.session().next_signal().has_value(); }));
  };
  for (const bool at_node_0 : {true, false}) {
    const auto tells = [&](Node& node) {
      node.session().report_timeout(5);
      ends(node);
    };
    const auto is_told = [&](Node& node) {
      hears(node);
      ends(node);
    };
    run_both(
        [&](Node& node) { at_node_0 ? tells(node) : is_told(node); },
        [&](Node& node) { at_node_0 ? is_told(node) : tells(node); },
        {.max_restarts = 1});
  }
}

TEST(NodeSession, SaysThatNode0IsNotThere) {
  Node second(1, free_port(), {.join_timeout_seconds = 0.2});
  EXPECT_THAT(
      [&] { second.join(); },
      testing::ThrowsMessage<Error>(
          AllOf(HasSubstr("could not be reached at 127.0.0.1"), HasSubstr("Connection refused"))));
}

TEST(NodeSession, ResolvesAnUnknownNameAgain) {
  for (const size_t here : {0U, 1U}) {
    Node node(here, free_port(), {.join_timeout_seconds = 0.2}, 2, "nobody.invalid");
    EXPECT_THAT(
        [&] { node.join(); },
        testing::ThrowsMessage<Error>(HasSubstr("'nobody.invalid' cannot be resolved")));
    EXPECT_THAT(node.said(), ElementsAre(HasSubstr("retrying for up to 0.2 s")));
    Node cancelled(here, free_port(), {.join_timeout_seconds = 60}, 2, "nobody.invalid");
    EXPECT_FALSE(cancelled.join([] { return true; }));
  }
}

TEST(NodeSession, RefusesConnectionsFromOutsideTheJob) {
  const int port = free_port();
  Node first(0, port, {.join_timeout_seconds = 3});
  auto joined = std::async(std::launch::async, [&] { EXPECT_THROW(first.join(), Error); });
  EXPECT_THAT(
      [&] {
        Node other_job(1, port, {.token = "another_token_0000"});
        other_job.join();
      },
      testing::ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("this job has another token"), HasSubstr("belongs to the same job"))));
  EXPECT_THAT(
      [&] {
        Node other_world(1, port, {}, 3);
        other_world.join();
      },
      testing::ThrowsMessage<ConfigError>(HasSubstr(
          "node 1 has ranks 2 to 3 of 6 on 3 hosts; node 0 expected ranks 2 to 3 of 4 on 2 "
          "hosts")));
  EXPECT_THAT(
      [&] {
        Node no_such_node(2, port, {}, 3);
        no_such_node.join();
      },
      testing::ThrowsMessage<ConfigError>(HasSubstr("node rank 2 is out of range")));
  joined.get();
}

}  // namespace
}  // namespace lockstep::launcher
