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

/// Compares, and remembers the first thing that was not as expected. A check goes on after it, so
/// that no rank waits for one that gave up.
class Expect {
 public:
  /// `what`: "all_reduce(sum) of Float".
  void equal(const std::string& what, const at::Tensor& got, const at::Tensor& expected);
  /// As far apart as `tolerance`, taken of each expected number, or of 1 if that is more.
  void near(
      const std::string& what, const at::Tensor& got, const at::Tensor& expected, double tolerance);
  void equal(const std::string& what, const std::string& got, const std::string& expected);
  void is_true(const std::string& what, bool got);

  /// "all_reduce(sum) of Float: got [1, 2], expected [1, 3]"; empty if all was well.
  const std::string& failure() const { return failure_; }

 private:
  void fail(const std::string& what, const std::string& got, const std::string& expected);
  std::string failure_;
};

/// Where a check runs.
struct Rank {
  WorldSpec world;
  Group group;
  std::filesystem::path folder;  ///< The same for all ranks, for files.
};

/// Something that holds on every machine that can run a job. Collective.
struct Check {
  std::string name;
  std::string what;  ///< What is checked, in words.
  std::function<void(Rank& rank, Expect& expect)> run;
};

struct RankFailure {
  int rank = 0;
  std::string message;
};

/// How a check went, the same on all ranks.
struct Result {
  std::string name;
  std::string what;
  double seconds = 0;                 ///< On this rank.
  std::vector<RankFailure> failures;  ///< Of all ranks; empty if it holds.
};

/// Runs the checks in turn, telling `done` of each as it ends. A check that fails does not keep the
/// next ones from being run. Collective. CommError if the ranks lose each other; what this rank
/// found of the check by then is first left as a line in `<folder>/lost_<rank>.jsonl`.
void run_checks(
    Rank& rank,
    const std::vector<Check>& checks,
    const std::function<void(const Result& result)>& done);

/// Every operation of a Group.
std::vector<Check> collective_checks();
/// Loaders, random numbers, data parallel training, checkpoints.
std::vector<Check> training_checks();

}  // namespace lockstep::selftest
