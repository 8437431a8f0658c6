// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/accelerator/backward/gradients.h"
#include "lockstep/accelerator/checkpointing/checkpoint_part.h"
#include "lockstep/accelerator/checkpointing/preemption.h"
#include "lockstep/accelerator/checkpointing/project_folder.h"
#include "lockstep/accelerator/checkpointing/registered_objects.h"
#include "lockstep/accelerator/checkpointing/state_loader.h"
#include "lockstep/accelerator/checkpointing/state_saver.h"
#include "lockstep/accelerator/diagnostics/finite_guard.h"
#include "lockstep/accelerator/diagnostics/replica_check.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/epoch_counter.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"

namespace lockstep::internal {

/// Decides when to save, load and resume: on request, after every n updates, when preempted, and
/// when a job is restarted.
class Checkpointer {
 public:
  /// Creates and locks project_dir. Throws as ProjectFolder does. `end_training` is called before
  /// an exit for preemption. Collective.
  Checkpointer(
      PreparedObjects& objects,
      TrainingStep& step,
      FiniteGuard& finite,
      const ActiveLoaders& active,
      EpochCounter& epochs,
      LocalSgdScopes& local_sgds,
      Gradients& gradients,
      ReplicaCheck& replicas,
      std::function<void()> end_training);

  /// See Accelerator::save_state.
  void save(const std::filesystem::path& folder, const SaveStateOptions& options);
  std::filesystem::path save(const SaveStateOptions& options);
  /// See Accelerator::load_state and resume_latest.
  void load(const std::filesystem::path& folder, const LoadStateOptions& options);
  std::filesystem::path load_latest();
  std::optional<std::filesystem::path> resume_latest();
  /// Resumes once if the launcher requests it and the program has loaded no state. `in_epochs`:
  /// called by Accelerator::epochs().
  void resume_if_requested(bool in_epochs);
  /// Saves every checkpointing_steps updates. Saves and exits with code 75 once all processes have
  /// agreed that one was preempted.
  void between_batches();

  StateSaver& saver() { return saver_; }
  RegisteredObjects& registered() { return *registered_; }
  ProgramHooks& hooks() { return *hooks_; }
  /// Adds a part that is saved and checked before all others.
  void add_first_part(std::shared_ptr<CheckpointPart> part) {
    parts_.insert(parts_.begin(), std::move(part));
  }
  Preemption& preemption() { return preemption_; }

 private:
  std::filesystem::path save_numbered(const SaveStateOptions& options);
  void save_if_due();
  [[noreturn]] void exit_preempted();

  PreparedObjects& objects_;
  TrainingStep& step_;
  std::function<void()> end_training_;
  ProjectFolder project_;
  Preemption preemption_;
  std::shared_ptr<ProgramHooks> hooks_;
  std::shared_ptr<RegisteredObjects> registered_ = std::make_shared<RegisteredObjects>();
  CheckpointParts parts_;
  StateLoader loader_;
  StateSaver saver_;

  bool loaded_ = false;  ///< The program has loaded a state, or tried to.
  bool resume_pending_;
  int64_t steps_at_save_ = 0;  ///< Updates at the last automatic save, or load.
};

}  // namespace lockstep::internal
