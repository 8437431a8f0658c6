// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/accelerator/checkpointing/checkpoint_part.h"
#include "lockstep/accelerator/checkpointing/project_folder.h"
#include "lockstep/accelerator/diagnostics/replica_check.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/options/project_configuration.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/checkpoint/background_save.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/weights/save_model.h"
#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::internal {

/// Writes checkpoints, during the call or on a separate thread.
class StateSaver {
 public:
  /// Writes files and folders of its own into `folder`, which becomes the checkpoint. All processes
  /// call it. A failure on one fails the save.
  using OwnFiles =
      std::function<void(const std::filesystem::path& folder, const SaveStateOptions& options)>;
  /// Called after the commit, on the thread that writes. Collective over its argument.
  using AfterCommit = std::function<void(const SavingGroups& groups)>;

  StateSaver(
      const PreparedObjects& objects,
      TrainingStep& step,
      LocalSgdScopes& local_sgds,
      ReplicaCheck& replicas,
      const ProjectFolder& project,
      const CheckpointParts& parts)
      : objects_(objects),
        step_(step),
        local_sgds_(local_sgds),
        replicas_(replicas),
        project_(project),
        parts_(parts) {}

  /// Saves the training state to `folder`; see Accelerator::save_state. Collective, unless
  /// the main process may save alone.
  void save(
      const std::filesystem::path& folder,
      const SaveStateOptions& options,
      const AfterCommit& after = nullptr);
  /// Sets what writes files of its own in each save. Asynchronous saves are refused then.
  void set_own_files(OwnFiles write) { own_files_ = std::move(write); }
  /// Blocks until no asynchronous save is running; throws if the last one failed.
  void wait();
  /// Returns the costs of the last save.
  const SaveTimings& timings() const { return timings_; }
  /// See Accelerator::save_model. Collective.
  void save_model(
      const NamedTensors& tensors,
      const std::filesystem::path& folder,
      const checkpoint::SaveModelOptions& options);

 private:
  bool may_save_alone(const SaveStateOptions& options, bool is_numbered) const;
  SavingGroups agree_on_processes(
      const std::filesystem::path& folder, const SaveStateOptions& options, bool is_numbered) const;
  std::string agree_on_save(const SavingGroups& groups, const std::filesystem::path& folder) const;
  void expect_finished_device() const;
  StateToSave collect(const SavingGroups& groups, const SaveStateOptions& options);
  void finish_contents(StateToSave& state, SaveTimings& timings);
  const SavingGroups& background_groups();

  const PreparedObjects& objects_;
  TrainingStep& step_;
  LocalSgdScopes& local_sgds_;
  ReplicaCheck& replicas_;
  const ProjectFolder& project_;
  const CheckpointParts& parts_;

  OwnFiles own_files_;
  SaveTimings timings_;
  double background_write_ms_ = 0;  ///< Read after wait() only.
  std::shared_ptr<checkpoint::Contents> snapshot_ = std::make_shared<checkpoint::Contents>();
  std::optional<SavingGroups> background_groups_;
  checkpoint::BackgroundSave background_;  ///< Last: its thread uses the members above.
};

}  // namespace lockstep::internal
