// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/common/report.h"

namespace lockstep::cli {

/// The command `lockstep test`: checks that this machine can run a job of several ranks.
class TestCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit TestCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs the checks; returns 0 if all pass, else 1. Throws ConfigError for invalid arguments, and
  /// if the program with the checks is missing.
  int run(const std::vector<std::string>& words) const;

 private:
  Report make_report() const;
  /// Runs the ranks with the checks, which write to `folder`. Returns the exit code of the job.
  int run_ranks(
      int ranks,
      const std::string& program,
      std::vector<std::string> argv,
      const std::string& folder) const;

  CLI::App* command_;  // [not null]
  std::string ranks_ = "2";
  bool json_ = false;
  bool python_ = false;
};

/// Returns the path of lockstep_selftest, the program with the checks, which links libtorch. It is
/// next to `self`, or in ../libexec/lockstep. Throws ConfigError, naming both paths, if it is
/// missing.
std::filesystem::path find_selftest(const std::filesystem::path& self);

/// Formats the results in `folder` of a job that ended with `job_code`: the lines of
/// `checks.jsonl`, one for each finished check.
Report selftest_report(const std::filesystem::path& folder, int ranks, int job_code);

}  // namespace lockstep::cli
