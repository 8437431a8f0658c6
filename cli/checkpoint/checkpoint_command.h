// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/checkpoint/merge_weights.h"
#include "lockstep/storage/catalog/retention.h"

namespace lockstep::cli {

/// The commands `lockstep checkpoint ls|show|verify|diff|prune`.
class CheckpointCommand {
 public:
  /// Adds the commands to `app`, which must not outlive this.
  explicit CheckpointCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs the command with the paths in `words`, and returns the exit code. Throws ConfigError for
  /// invalid arguments.
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App* add(const std::string& name, const std::string& what, const std::string& usage);
  Report make_report(const std::vector<std::string>& words) const;

  CLI::App* command_;         // [not null]
  CLI::App* list_;            // [not null]
  CLI::App* show_;            // [not null]
  CLI::App* verify_;          // [not null]
  CLI::App* diff_;            // [not null]
  CLI::App* prune_;           // [not null]
  CLI::Option* keep_option_;  // [not null]
  bool json_ = false;
  storage::PruneOptions prune_options_;
};

/// The command `lockstep merge-weights`: writes the weights of a checkpoint as one float32 file.
class MergeWeightsCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit MergeWeightsCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs the command with the two paths in `words`, and returns the exit code. Throws ConfigError
  /// for invalid arguments.
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App* command_;          // [not null]
  CLI::Option* shard_option_;  // [not null]
  std::string max_shard_size_;
  std::string dtype_ = kMergeDtypes[static_cast<size_t>(MergeDtype::kFloat32)];
  bool json_ = false;
  MergeOptions options_;
};

}  // namespace lockstep::cli
