// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/common/report.h"

namespace lockstep::cli {

/// The command `lockstep schedule`: prints the learning rates of a ds_config.json, or the order in
/// which the ranks of a pipeline compute.
class ScheduleCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit ScheduleCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs with the file in `words`, if any; returns the exit code. Throws ConfigError for invalid
  /// options.
  int run(const std::vector<std::string>& words) const;

 private:
  Report rates_report(const std::vector<std::string>& words) const;
  Report pipeline_report_of(const std::vector<std::string>& words) const;

  CLI::App* command_;  // [not null]
  std::optional<int64_t> steps_;
  std::optional<double> lr_;
  bool json_ = false;
  bool plot_ = false;
  std::string pipeline_;
  std::optional<int> stages_;
  std::optional<int> micro_batches_;
  std::optional<int> chunks_;
};

}  // namespace lockstep::cli
