// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/common/report.h"
#include "lockstep/watch/flight_dump.h"

namespace lockstep::cli {

struct FlightOptions {
  int rank = -1;     ///< Only this one; -1: all.
  size_t last = 10;  ///< Operations shown of each rank; 0: all that were kept.
};

/// What the ranks of `dump` were doing, and their last operations.
Report show_flight(
    const watch::FlightDump& dump, const std::string& path, const FlightOptions& options);

/// `lockstep flight`: reads what a failed job has left of its ranks' last operations.
class FlightCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit FlightCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App* command_;  // [not null]
  FlightOptions options_;
  bool json_ = false;
};

}  // namespace lockstep::cli
