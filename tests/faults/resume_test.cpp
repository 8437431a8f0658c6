// SPDX-License-Identifier: Apache-2.0
// Jobs that are killed or stopped at any moment and resumed repeatedly. All their steps together
// are bit-exact with an uninterrupted run.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/storage/test_files.h"
#include "tests/e2e/harness/lockstep_run.h"
#include "tests/faults/fault_bench.h"

namespace lockstep::faults {
namespace {

namespace fs = std::filesystem;
using e2e::LockstepRun;
using e2e::Outcome;
using testing::HasSubstr;

constexpr int kTerminated = 128 + SIGTERM;

struct Setting {
  int ranks = 1;
  std::string precision = "no";
  int accumulate = 1;
  bool async = false;
  int steps = 30;   ///< Updates.
  int every = 4;    ///< So many from one checkpoint to the next.
  int hold_at = 0;  ///< The micro-step within which the last rank is held, see resume_fixture.cpp.
  std::string name() const {
    return std::to_string(ranks) + "_" + precision + "_x" + std::to_string(accumulate) +
           (async ? "_async" : "");
  }
};

std::vector<std::string> command(
    const Setting& setting, const fs::path& project, bool resume = true, bool by_hand = false) {
  std::vector<std::string> words = {"launch", "-n", std::to_string(setting.ranks)};
  if (resume && !by_hand) {
    words.emplace_back("--resume");
  }
  for (const std::string& word :
       {std::string(RESUME_FIXTURE),
        std::string("--project"),
        project.string(),
        std::string("--precision"),
        setting.precision,
        std::string("--accumulate"),
        std::to_string(setting.accumulate),
        std::string("--steps"),
        std::to_string(setting.steps),
        std::string("--every"),
        std::to_string(setting.every),
        std::string("--hold-at"),
        std::to_string(setting.hold_at),
        std::string("--hold-rank"),
        std::to_string(setting.ranks - 1)}) {
    words.push_back(word);
  }
  if (setting.async) {
    words.emplace_back("--async");
  }
  if (by_hand) {
    words.emplace_back("--by-hand");
  }
  return words;
}

/// Returns a rank's lines by number; repeated lines must be equal.
std::map<std::string, std::string> steps_of(const fs::path& project, int rank) {
  std::map<std::string, std::string> steps;
  std::ifstream file(project / ("steps_" + std::to_string(rank)));
  for (std::string line; std::getline(file, line);) {
    const std::string number = line.substr(0, line.find_first_of(": "));
    const auto [known, is_new] = steps.emplace(number, line);
    EXPECT_TRUE(is_new || known->second == line)
        << "rank " << rank << " did step " << number << " differently the second time:\n"
        << known->second << "\n"
        << line;
  }
  return steps;
}

/// Removes a last line that a killed process has not completed.
void drop_torn_line(const fs::path& project, int rank) {
  const fs::path path = project / ("steps_" + std::to_string(rank));
  if (!fs::exists(path)) {
    return;
  }
  const std::string text = storage::read_bytes(path);
  fs::resize_file(path, text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
}

class Resume : public testing::TestWithParam<Setting> {
 protected:
  fs::path project(const std::string& name) const {
    fs::create_directories(folder_ / name);
    return folder_ / name;
  }
  /// Runs to the end without a fault; returns the number of micro-steps.
  int run_unbroken() {
    const Outcome outcome =
        e2e::run_lockstep(command(GetParam(), project("unbroken"), /*resume=*/false));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return static_cast<int>(steps_of(project("unbroken"), 0).size()) - 1;
  }
  void expect_equals_unbroken(const std::string& name) {
    for (int rank = 0; rank < GetParam().ranks; ++rank) {
      EXPECT_EQ(steps_of(project(name), rank), steps_of(project("unbroken"), rank))
          << "rank " << rank;
    }
  }
  TestFolder folder_;
};

TEST_P(Resume, KilledAtRandomStepsAgainAndAgainItEqualsTheUnbrokenRun) {
  const int last = run_unbroken();
  ASSERT_GT(last, 20);
  const char* all = std::getenv("LOCKSTEP_FAULTS");
  const int rounds = all != nullptr && std::string(all) == "all" ? 50 : 4;
  std::mt19937 random(static_cast<unsigned>(GetParam().ranks * 100 + GetParam().accumulate));
  int done = 0;
  for (int number = 0; done < rounds; ++number) {
    const std::string name = "broken" + std::to_string(number);
    for (bool ended = false; !ended;) {
      LockstepRun run(command(GetParam(), project(name)));
      int code = 0;
      if (done < rounds) {
        run.await_out("step ");
        run.await_out(" \n");
        const int first = std::stoi(run.out().substr(run.out().find("step ") + 5));
        const int most = std::min(last - first, 12);
        run.await_out(
            "step " +
            std::to_string(first + static_cast<int>(random() % (static_cast<unsigned>(most) + 1))) +
            " ");
        ++done;
        const auto victim = static_cast<int>(random() % static_cast<unsigned>(GetParam().ranks));
        // If the launcher is killed too, no report exists; otherwise the job must end by itself.
        if (random() % 4 == 0) {
          run.send(SIGKILL);
        } else {
          run.send_to_rank(victim, SIGKILL);
        }
        code = run.wait().code;
        EXPECT_TRUE(code == kKilled || code == 0) << code;
      } else {
        const Outcome outcome = run.wait();
        code = outcome.code;
        EXPECT_EQ(code, 0) << outcome.err;
      }
      EXPECT_TRUE(run.survivors().empty());
      for (int rank = 0; rank < GetParam().ranks; ++rank) {
        drop_torn_line(project(name), rank);
      }
      ended = code == 0;
      ASSERT_TRUE(code == kKilled || code == 0);
    }
    expect_equals_unbroken(name);
    for (const std::string& left : storage::names_in(project(name) / "checkpoints")) {
      EXPECT_EQ(left.find(".tmp-"), std::string::npos) << left;
    }
    EXPECT_TRUE(strangers_in(project(name)).empty());
    fs::remove_all(project(name));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings,
    Resume,
    testing::Values(
        Setting{.ranks = 1},
        Setting{.ranks = 1, .precision = "bf16", .accumulate = 3},
        Setting{.ranks = 1, .precision = "fp16"},
        Setting{.ranks = 2, .accumulate = 3},
        Setting{.ranks = 2, .precision = "bf16"},
        Setting{.ranks = 2, .precision = "fp16", .accumulate = 3, .async = true}),
    [](const auto& tested) { return tested.param.name(); });

class Stopped : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(unbroken_);
    fs::create_directories(stopped_);
  }
  void expect_no_end() const { EXPECT_FALSE(steps_of(stopped_, 0).contains("end")); }
  /// Resumes the stopped run, and compares all of it with an uninterrupted one.
  void expect_goes_on_as_if_unbroken(Setting setting, bool by_hand = false) const {
    setting.hold_at = 0;
    EXPECT_EQ(e2e::run_lockstep(command(setting, unbroken_, /*resume=*/false)).code, 0);
    const Outcome outcome = e2e::run_lockstep(command(setting, stopped_, true, by_hand));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    for (int rank = 0; rank < setting.ranks; ++rank) {
      EXPECT_EQ(steps_of(stopped_, rank), steps_of(unbroken_, rank)) << "rank " << rank;
      EXPECT_TRUE(steps_of(stopped_, rank).contains("end")) << "rank " << rank;
    }
  }
  TestFolder folder_;
  fs::path unbroken_ = folder_ / "unbroken";
  fs::path stopped_ = folder_ / "stopped";
};

/// The process that gets a signal to stop, and the signal.
using StopSignal = std::tuple<std::string, int>;

class Preemption : public Stopped, public testing::WithParamInterface<StopSignal> {};

TEST_P(Preemption, AllRanksSaveAfterTheSameBatchAndTheJobEndsWith75AndResumes) {
  const auto& [who, signal] = GetParam();
  // Ranks ask each other at least every 64 batches, of these 1200; no other event makes them save.
  const Setting setting{.ranks = 2, .accumulate = 3, .steps = 400, .every = 1000};
  LockstepRun run(command(setting, stopped_, /*resume=*/false));
  run.await_out("step ", 7);
  if (who == "launcher") {
    run.send(signal);
  } else {
    run.send_to_rank(who == "rank0" ? 0 : 1, signal);
  }
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, kPreempted) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("exiting with code 75"));
  EXPECT_TRUE(run.survivors().empty());
  EXPECT_EQ(steps_of(stopped_, 0).size(), steps_of(stopped_, 1).size());
  expect_no_end();
  expect_goes_on_as_if_unbroken(setting, /*by_hand=*/true);
}

INSTANTIATE_TEST_SUITE_P(
    StopSignal,
    Preemption,
    testing::Values(
        StopSignal{"launcher", SIGTERM},
        StopSignal{"launcher", SIGUSR1},
        StopSignal{"rank0", SIGTERM},
        StopSignal{"rank1", SIGUSR1}),
    [](const auto& tested) {
      return std::get<0>(tested.param) + (std::get<1>(tested.param) == SIGTERM ? "Term" : "Usr1");
    });

TEST_F(Stopped, ABusyRankSavesWithTheOthersAfterTwoSignals) {
  const Setting setting{.ranks = 2, .accumulate = 3, .steps = 400, .every = 1000, .hold_at = 8};
  LockstepRun run(command(setting, stopped_, /*resume=*/false));
  run.await_out("holding");
  // Batch systems signal every process, and the launcher forwards the signal once more.
  run.send_to_rank(0, SIGTERM);
  run.send_to_rank(1, SIGTERM);
  run.send(SIGTERM);
  run.await_err("SIGTERM received and forwarded");
  run.await_out("told");
  storage::write_bytes(stopped_ / "release", "");
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, kPreempted) << outcome.err;
  EXPECT_TRUE(run.survivors().empty());
  EXPECT_EQ(steps_of(stopped_, 0).size(), steps_of(stopped_, 1).size());
  expect_no_end();
  expect_goes_on_as_if_unbroken(setting);
}

TEST_F(Stopped, ASecondJobInTheSameProjectIsRefusedAndTheFirstContinues) {
  const Setting setting{.ranks = 2, .hold_at = 10};
  Setting second = setting;
  second.hold_at = 0;
  LockstepRun first(command(setting, stopped_, /*resume=*/false));
  first.await_out("holding");
  const std::string told = stopped_.string() + "] is in use by another job: process " +
                           std::to_string(first.rank_pid(0)) + " (resume_fixture) on host ";
  const Outcome refused = e2e::run_lockstep(command(second, stopped_, /*resume=*/false));
  EXPECT_EQ(refused.code, 1) << refused.err;
  EXPECT_THAT(
      refused.err,
      testing::AllOf(testing::HasSubstr(told), testing::HasSubstr("set another project_dir")));
  // A resumed job may start while the previous one is about to end.
  LockstepRun successor(command(second, stopped_, /*resume=*/true));
  successor.await_err(told);
  storage::write_bytes(stopped_ / "release", "");
  const Outcome outcome = first.wait();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Outcome after = successor.wait();
  EXPECT_EQ(after.code, 0) << after.err;
  expect_goes_on_as_if_unbroken(setting);
}

TEST_F(Stopped, AKilledJobLeavesNoLock) {
  const Setting setting{.ranks = 2, .hold_at = 10};
  LockstepRun run(command(setting, stopped_, /*resume=*/false));
  run.await_out("holding");
  run.send_to_rank(0, SIGKILL);
  EXPECT_NE(run.wait().code, 0);
  EXPECT_TRUE(run.survivors().empty());
  expect_goes_on_as_if_unbroken(setting);
}

TEST_F(Stopped, ATermTwoSecondsLaterEndsALoneProcessWhichResumesFromThePreviousSave) {
  const Setting setting{.hold_at = 10};
  LockstepRun run(command(setting, stopped_, /*resume=*/false));
  run.await_out("holding");
  run.send_to_rank(0, SIGTERM);
  run.await_out("told");
  // Only the time between signals distinguishes a second request from a repeated first one.
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  run.send_to_rank(0, SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, kTerminated) << outcome.err;
  EXPECT_TRUE(run.survivors().empty());
  EXPECT_EQ(steps_of(stopped_, 0).size(), 9U);
  EXPECT_THAT(
      storage::names_in(stopped_ / "checkpoints"),
      testing::ElementsAre(".lockstep_lock", "checkpoint_0", "checkpoint_1", "latest"));
  expect_goes_on_as_if_unbroken(setting);
}

}  // namespace
}  // namespace lockstep::faults
