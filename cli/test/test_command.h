// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/common/report.h"

namespace lockstep::cli {

/// `lockstep test`: whether this machine can run a job of several ranks, found out by running one.
class TestCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit TestCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs the checks; returns 0 if all hold, else 1. ConfigError for what makes no sense, and where
  /// the program with the checks is not to be found.
  int run(const std::vector<std::string>& words) const;

 private:
  Report make_report() const;

  CLI::App* command_;  // [not null]
  std::string ranks_ = "2";
  bool json_ = false;
};

/// The program with the checks, which needs libtorch and so is not this one: lockstep_selftest,
/// beside `self`, or in ../libexec/lockstep from there. ConfigError, naming both places, if it is
/// in neither.
std::filesystem::path find_selftest(const std::filesystem::path& self);

/// What the checks have left in `folder`, after a job that ended with `job_code`: the lines of
/// `checks.jsonl`, one for each check that came to its end.
Report selftest_report(const std::filesystem::path& folder, int ranks, int job_code);

}  // namespace lockstep::cli
