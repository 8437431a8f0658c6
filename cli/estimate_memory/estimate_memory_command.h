// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/estimate_memory/estimate_memory_report.h"

namespace lockstep::cli {

/// The command `lockstep estimate-memory`: estimates the memory to load and train a model.
class EstimateMemoryCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit EstimateMemoryCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs the command with the path in `words`, if there is one, and returns the exit code. Throws
  /// ConfigError for invalid arguments.
  int run(const std::vector<std::string>& words) const;

 private:
  EstimateRequest request_of(const std::vector<std::string>& words) const;

  CLI::App* command_;  // [not null]
  std::string parameters_;
  std::string largest_layer_;
  std::string ranks_ = "2";
  std::string hosts_ = "1";
  std::string mesh_;
  std::string dtypes_ = "float32,float16,bfloat16,int8,int4";
  std::string optimizer_ = "adamw";
  std::string mixed_precision_ = "bf16";
  int model_ = 0;
  bool json_ = false;
};

}  // namespace lockstep::cli
