// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// The step after which fault_fixture saves for the first, second and third time. The second save
/// is the one that is broken.
constexpr int kFirstSave = 4;
constexpr int kSecondSave = 8;
constexpr int kLastStep = 12;

/// A call that count_calls.cpp has counted.
struct Call {
  int number = 0;
  std::string kind;
  fs::path path;
};

/// What goes wrong in the second save, see count_calls.cpp.
struct Fault {
  int rank = 0;
  int call = 0;  ///< The number of the call; 0: none, -1: every one.
  std::string action = "kill";
  std::string kinds = {};
};

/// LOCKSTEP_FAULTS=all: every point there is, not a few of them.
bool tries_all();

/// Those of the calls 1 to `calls` that this run lets go wrong: every one, or every fifth from one
/// on that changes with the clock. LOCKSTEP_FAULTS_OFFSET=n, 0 to 4, settles which.
std::vector<int> calls_to_try(int calls);
/// What to set so that the same ones are tried again; for messages.
std::string how_to_repeat();

/// Has an unbroken run of fault_fixture on two ranks to compare with, and makes projects to break:
/// copies of it as it was right after a save.
class FaultBench : public testing::Test {
 protected:
  void SetUp() override;

  /// A project of that name with the first `saves` checkpoints, and no steps.
  fs::path project(const std::string& name, int saves);
  static fs::path checkpoint(const fs::path& project, int number);

  /// Runs the fixture on so many ranks, and expects that no process of it is left.
  static Outcome run(
      const fs::path& project,
      const std::vector<std::string>& arguments,
      const std::vector<std::string>& variables = {},
      int ranks = 2);
  /// The same from the first save on, with something wrong in the second; says what was counted.
  std::pair<Outcome, std::vector<Call>> run_with_fault(
      const fs::path& project, const Fault& fault, const std::vector<std::string>& arguments = {});
  /// Calls that a save makes in that rank.
  int calls_of_a_save(int rank, const std::string& kinds = {});

  /// Every step that both have taken is the same to the bit, samples and loss; if `to_the_end`, the
  /// weights are, too.
  void expect_unbroken(const fs::path& project, bool to_the_end = true);
  /// Resumes, and expects the run to end as if nothing had happened, from checkpoint `from`, with
  /// nothing temporary left.
  void expect_resumes(const fs::path& project, int from);

  TestFolder folder_;
  fs::path unbroken_ = folder_ / "unbroken";
};

/// Names in `<project>/checkpoints` without those that belong there.
std::vector<std::string> strangers_in(const fs::path& project);

/// The step of the last line a rank has written, 0 if there is none.
int last_step(const fs::path& project, int rank);

/// What a rank wrote down of a save that failed; empty if none did.
std::string failure_of(const fs::path& project, int rank);

}  // namespace lockstep::faults
