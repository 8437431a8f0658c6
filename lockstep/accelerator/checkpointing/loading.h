// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/accelerator/checkpointing/registered_objects.h"
#include "lockstep/accelerator/diagnostics/finite_guard.h"
#include "lockstep/accelerator/loop/epoch_counter.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/options/project_configuration.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/storage/saved_meta.h"

namespace lockstep {

/// The objects that a checkpoint is loaded into.
struct LoadTargets {
  PreparedObjects& objects;
  TrainingStep& step;
  FiniteGuard& finite;
  EpochCounter& epochs;
  LocalSgdScopes& local_sgds;
  RegisteredObjects& registered;
  int writers_per_rank = 1;  ///< Threads that read the files of one rank.
};

/// One load of a checkpoint: its content, and the functions that apply it once all of it was
/// checked. Each check_* below adds such functions, changes nothing, and throws CheckpointError for
/// a state that does not fit the program.
struct Loading {
  LoadTargets& targets;
  checkpoint::Reader reader;
  storage::SavedMeta saved;
  checkpoint::VerificationShare share;  ///< The checksums that this process verifies.
  LoadStateOptions options;
  int saved_by = 1;  ///< Number of processes.
  bool resharded = false;
  std::vector<std::function<void()>> apply = {};

  int rank() const { return targets.objects.context.rank(); }
  int processes() const { return targets.objects.context.size(); }
  /// The rank whose files this process reads.
  int source() const { return resharded ? 0 : rank(); }

  std::string path(const std::string& file) const;
  /// Names the file or files of a set of tensors, for messages.
  std::string set_path(const std::string& stem) const;
  /// Returns the tensors of a set; each process verifies its share of them.
  NamedTensors tensor_set(const std::string& stem) const;
  /// Returns the tensors of each process that saved, from one file for each.
  std::vector<NamedTensors> of_all_ranks(const std::function<std::string(int rank)>& file_of) const;
  /// Throws CheckpointError unless the program prepared as many objects as were saved.
  void must_match(
      const char* what,
      size_t saved_count,
      size_t prepared_count,
      const std::string& remedy = "") const;
};

/// Checks models, their buffers of each process, and compressed gradients that are still to be
/// sent.
void check_models(Loading& loading);
void check_comm_hooks(Loading& loading);
/// Checks optimizers, and local SGD's numbers of updates.
void check_optimizers(Loading& loading);
/// Checks loss scale, schedules, and the position in an accumulation group.
void check_loop(Loading& loading);
/// Checks loader positions and random numbers.
void check_positions(Loading& loading);
void check_registered_objects(Loading& loading);

}  // namespace lockstep
