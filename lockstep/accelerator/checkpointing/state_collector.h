// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/project_folder.h"
#include "lockstep/accelerator/checkpointing/registered_objects.h"
#include "lockstep/accelerator/diagnostics/finite_guard.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/epoch_counter.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/options/project_configuration.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/accelerator/training_state/sharded_state.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/even_shares.h"

namespace lockstep {

/// The content of a checkpoint before it is written.
struct CollectedState {
  checkpoint::Contents contents;  ///< This process's files.
  /// Full tensors of a sharded model, which the main process reads one by one while all processes
  /// help to unshard them.
  checkpoint::Contents full_tensors;
  nlohmann::json meta;
};

/// Collects the training state of a save. Tensors are referred to, not copied. Not thread-safe.
class StateCollector {
 public:
  StateCollector(
      const PreparedObjects& objects,
      TrainingStep& step,
      const FiniteGuard& finite,
      const ActiveLoaders& active,
      const EpochCounter& epochs,
      const LocalSgdScopes& local_sgds,
      RegisteredObjects& registered,
      const ProjectFolder& project)
      : objects_(objects),
        step_(step),
        finite_(finite),
        active_(active),
        epochs_(epochs),
        local_sgds_(local_sgds),
        registered_(registered),
        project_(project) {}

  /// Runs the hooks, then collects all states. A failure on one process fails the save when it is
  /// written, so that no process waits for another. Collective.
  CollectedState collect(const SaveStateOptions& options);

 private:
  void collect_models(
      CollectedState& state,
      const std::set<size_t>& excluded,
      const SaveStateOptions& options,
      checkpoint::EvenShares& shares);
  void collect_optimizers(CollectedState& state, checkpoint::EvenShares& shares);
  void collect_optimizer(
      checkpoint::Contents& contents,
      size_t index,
      const ParameterName& names,
      checkpoint::EvenShares& shares);
  SavedWhere where() const;
  void collect_position(checkpoint::Contents& contents);
  void collect_loaders(checkpoint::Contents& contents);
  void collect_accumulation(checkpoint::Contents& contents);

  const PreparedObjects& objects_;
  TrainingStep& step_;
  const FiniteGuard& finite_;
  const ActiveLoaders& active_;
  const EpochCounter& epochs_;
  const LocalSgdScopes& local_sgds_;
  RegisteredObjects& registered_;
  const ProjectFolder& project_;
};

}  // namespace lockstep
