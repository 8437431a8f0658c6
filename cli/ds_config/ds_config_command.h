// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// The commands `lockstep ds-config check|keys`: check a ds_config.json, and list all keys.
class DsConfigCommand {
 public:
  /// Adds the commands to `app`, which must not outlive this.
  explicit DsConfigCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs the given command with the file in `words`; returns the exit code. Throws ConfigError for
  /// invalid options.
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App* command_;  // [not null]
  CLI::App* check_;    // [not null]
  CLI::App* keys_;     // [not null]
  std::optional<int64_t> world_size_;
  bool json_ = false;
  bool markdown_ = false;
};

}  // namespace lockstep::cli
