// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/common/report.h"
#include "lockstep/base/env.h"

namespace lockstep::cli {

/// The options of `lockstep report`. Empty paths: not given.
struct ReportOptions {
  std::filesystem::path output = {};
  std::filesystem::path compare = {};  ///< Another run.
  std::filesystem::path flight = {};   ///< A dump of the flight recorder.
};

/// Writes the page of a run, and returns its path and the main numbers. The flight dump of a run is
/// found by its run id, in the run's folder and among this user's dumps of `environment`. Throws
/// ConfigError, naming the file, for files that cannot be read; Error if the page cannot be
/// written.
Report report_run(
    const std::filesystem::path& run, const ReportOptions& options, const Environment& environment);

/// The command `lockstep report`: one HTML page about a run.
class ReportCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit ReportCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs the command with the path in `words`, and returns the exit code.
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App* command_;  // [not null]
  std::string output_;
  std::string compare_;
  std::string flight_;
  bool json_ = false;
};

}  // namespace lockstep::cli
