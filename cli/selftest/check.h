// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/base/host/world.h"
#include "lockstep/comm/group.h"

namespace lockstep::selftest {

/// Compares values, and keeps the first failure. A check continues after a failure, so that no rank
/// waits for it in vain.
class Expect {
 public:
  /// Records a failure of `what`, like "all_reduce(sum) of Float", unless both values are equal.
  void equal(const std::string& what, const at::Tensor& got, const at::Tensor& expected);
  /// Allows a difference of `tolerance` times the larger of 1 and the expected number.
  void near(
      const std::string& what, const at::Tensor& got, const at::Tensor& expected, double tolerance);
  void equal(const std::string& what, const std::string& got, const std::string& expected);
  void is_true(const std::string& what, bool got);

  /// Returns "all_reduce(sum) of Float: got [1, 2], expected [1, 3]"; empty without a failure.
  const std::string& failure() const { return failure_; }

 private:
  void fail(const std::string& what, const std::string& got, const std::string& expected);
  std::string failure_;
};

/// The rank that runs the checks.
struct Rank {
  WorldSpec world;
  Group group;
  std::filesystem::path folder;  ///< A folder for files, the same for all ranks.
};

/// A check that passes on every machine that can run a job. Collective.
struct Check {
  std::string name;
  std::string what;  ///< A description for the user.
  std::function<void(Rank& rank, Expect& expect)> run;
};

/// The failure of one rank.
struct RankFailure {
  int rank = 0;
  std::string message;
};

/// The result of a check, the same on all ranks.
struct Result {
  std::string name;
  std::string what;
  double seconds = 0;                 ///< The time on this rank.
  std::vector<RankFailure> failures;  ///< The failures of all ranks; empty if it passed.
};

/// Runs the checks in order, and calls `done` with each result. Continues after a failed check.
/// Collective. Throws CommError if the ranks lose each other; the failure that this rank has found
/// by then is first written to `<folder>/lost_<rank>.jsonl`.
void run_checks(
    Rank& rank,
    const std::vector<Check>& checks,
    const std::function<void(const Result& result)>& done);

/// Returns the checks of every operation of a Group.
std::vector<Check> collective_checks();
/// Returns the checks of loaders, random numbers, data parallel training and checkpoints.
std::vector<Check> training_checks();

}  // namespace lockstep::selftest
