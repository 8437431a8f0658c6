// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/common/report.h"
#include "lockstep/watch/flight_dump.h"

namespace lockstep::cli {

/// The options of `lockstep flight`.
struct FlightOptions {
  int rank = -1;     ///< The only rank to show; -1: all.
  size_t last = 10;  ///< Operations of each rank; 0: all recorded ones.
};

/// Formats the states of the ranks in `dump`, and their last operations.
Report show_flight(
    const watch::FlightDump& dump, const std::string& path, const FlightOptions& options);

/// The command `lockstep flight`: shows the last operations of the ranks of a failed job.
class FlightCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit FlightCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs the command with the path in `words`, if there is one, and returns the exit code.
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App* command_;  // [not null]
  FlightOptions options_;
  bool json_ = false;
};

}  // namespace lockstep::cli
