// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/storage/test_files.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::faults {

namespace fs = std::filesystem;
using e2e::Outcome;
using storage::edit_manifest;

/// Steps after which fault_fixture saves for the first, second and third time. Faults hit the
/// second save.
constexpr int kFirstSave = 4;
constexpr int kSecondSave = 8;
constexpr int kLastStep = 12;

// Exit statuses of `lockstep`.
constexpr int kFailed = 1;
constexpr int kPreempted = 75;
constexpr int kKilled = 128 + SIGKILL;

/// A call that count_calls.cpp has counted.
struct Call {
  int number = 0;
  std::string kind;
  fs::path path;
};

/// The fault of the second save, see count_calls.cpp.
struct Fault {
  int rank = 0;
  int call = 0;  ///< The number of the call; 0: none, -1: every one.
  std::string action = "kill";
  std::string kinds = {};
};

/// Returns whether LOCKSTEP_FAULTS=all requests every call, not every fifth.
bool tries_all();

/// Returns the calls among 1 to `calls` that fail in this run: every one, or every fifth from one
/// that changes with the clock. LOCKSTEP_FAULTS_OFFSET=n, 0 to 4, sets the first one.
std::vector<int> calls_to_try(int calls);
/// Returns the variable that repeats this choice of calls, for messages.
std::string how_to_repeat();

/// Runs fault_fixture on two ranks without a fault, for comparison, and creates projects for
/// faults: copies of that run right after a save.
class FaultBench : public testing::Test {
 protected:
  void SetUp() override;

  /// Creates a project of that name with the first `saves` checkpoints, and no steps.
  fs::path project(const std::string& name, int saves);
  /// Returns the folder of the run's first, second, ... save; `save` counts from 1.
  static fs::path checkpoint(const fs::path& project, int save);

  /// Runs the fixture on `ranks` ranks, and expects that no process of it remains.
  static Outcome run(
      const fs::path& project,
      const std::vector<std::string>& arguments,
      const std::vector<std::string>& variables = {},
      int ranks = 2);
  /// Runs the fixture from the first save on, with a fault in the second save. Also returns the
  /// counted calls.
  std::pair<Outcome, std::vector<Call>> run_with_fault(
      const fs::path& project, const Fault& fault, const std::vector<std::string>& arguments = {});
  /// Returns the number of calls of a save in that rank.
  int calls_of_a_save(int rank, const std::string& kinds = {});

  /// Expects that samples and loss of all steps are bit-exact with the run without faults. With
  /// `to_the_end` it compares the weights, too.
  void expect_unbroken(const fs::path& project, bool to_the_end = true);
  /// Resumes, and expects that the run loads the checkpoint of save `from`, ends like the run
  /// without faults, and leaves no temporary folder.
  void expect_resumes(const fs::path& project, int from);

  TestFolder folder_;
  fs::path unbroken_ = folder_ / "unbroken";
};

/// Returns the names in `<project>/checkpoints` that are not checkpoints.
std::vector<std::string> strangers_in(const fs::path& project);

/// Returns the step of the last line of a rank, 0 without any.
int last_step(const fs::path& project, int rank);

/// Returns the error that a rank wrote for a failed save; empty without one.
std::string failure_of(const fs::path& project, int rank);

}  // namespace lockstep::faults
