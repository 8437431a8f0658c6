// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/accelerator/backward/gradients.h"
#include "lockstep/accelerator/checkpointing/loading.h"
#include "lockstep/accelerator/checkpointing/project_folder.h"
#include "lockstep/accelerator/options/project_configuration.h"

namespace lockstep {

/// Loads checkpoints into the prepared objects: those of Lockstep, and folders of Accelerate. Not
/// thread-safe.
class StateLoader {
 public:
  StateLoader(const LoadTargets& targets, Gradients& gradients, const ProjectFolder& project)
      : targets_(targets), gradients_(gradients), project_(project) {}

  /// See Accelerator::load_state. Checks everything on all processes before anything changes.
  /// Collective.
  void load(const std::filesystem::path& folder, const LoadStateOptions& options);

 private:
  /// A checked checkpoint.
  struct Checked {
    std::string id;              ///< Identifies the save; empty: by its numbers of updates.
    std::vector<int64_t> steps;  ///< Updates of each optimizer.
    bool verified = true;        ///< Its files were to be verified.
    std::vector<std::function<void()>> apply;
  };

  Checked check(const std::filesystem::path& folder, const LoadStateOptions& options);
  Checked check_saved(const std::filesystem::path& folder, const LoadStateOptions& options);
  Checked check_import(const std::filesystem::path& folder);
  void expect_same_save(const std::filesystem::path& folder, const Checked& checked);

  LoadTargets targets_;
  Gradients& gradients_;
  const ProjectFolder& project_;
};

}  // namespace lockstep
