// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/common/report.h"
#include "lockstep/config/config_file.h"

namespace lockstep::cli {

/// The commands `lockstep config` and `lockstep config default|show|validate|import`.
class ConfigCommand {
 public:
  /// Adds the commands to `app`, which must not outlive this.
  explicit ConfigCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs the given command with the paths in `words`; returns the exit code. Throws ConfigError
  /// for invalid options or files.
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App* add(const std::string& name, const std::string& what, const std::string& usage);
  void add_file_option(CLI::App& command);
  std::optional<std::string> chosen_file() const;
  config::ConfigLocation location() const;
  int ask() const;
  Report make_report(const std::vector<std::string>& words) const;
  Report write_default() const;
  Report validate(const std::vector<std::string>& words) const;
  Report import_file(const std::vector<std::string>& words) const;

  CLI::App* command_;   // [not null]
  CLI::App* default_;   // [not null]
  CLI::App* show_;      // [not null]
  CLI::App* validate_;  // [not null]
  CLI::App* import_;    // [not null]
  std::string config_file_;
  std::string mixed_precision_ = "no";
  bool force_ = false;
  bool json_ = false;
};

}  // namespace lockstep::cli
