// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/accelerator/backward/gradients.h"
#include "lockstep/accelerator/checkpointing/checkpoint_part.h"
#include "lockstep/accelerator/checkpointing/project_folder.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/options/project_configuration.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"

namespace lockstep::internal {

/// Loads checkpoints into the prepared objects: those of Lockstep, and folders of Accelerate.
class StateLoader {
 public:
  StateLoader(
      PreparedObjects& objects,
      LocalSgdScopes& local_sgds,
      Gradients& gradients,
      const ProjectFolder& project,
      const CheckpointParts& parts)
      : objects_(objects),
        local_sgds_(local_sgds),
        gradients_(gradients),
        project_(project),
        parts_(parts) {}

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

  PreparedObjects& objects_;
  LocalSgdScopes& local_sgds_;
  Gradients& gradients_;
  const ProjectFolder& project_;
  const CheckpointParts& parts_;
};

}  // namespace lockstep::internal
