// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/accelerator/backward/collective_scope.h"
#include "lockstep/accelerator/backward/gradient_scope.h"
#include "lockstep/accelerator/checkpointing/state_saver.h"
#include "lockstep/accelerator/prepare/preparer.h"
#include "lockstep/accelerator/step/optimizer.h"
#include "lockstep/accelerator/training_state/checkpointable.h"
#include "lockstep/checkpoint/weights/save_model.h"
#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep {

class Accelerator;
class LocalSgd;
struct JoinUnevenInputs;
struct LocalSgdScopeOptions;

}  // namespace lockstep

namespace lockstep::internal {

class ActiveLoaders;
class BackwardRunner;
class CheckpointPart;
class FiniteGuard;
class LocalSgdScopes;
class TrainingStep;
struct PreparedObjects;
struct RunContext;

/// Gives the engine, LocalSgd, find_executable_batch_size and the Python bindings access to parts
/// of an Accelerator. Not for programs: it changes without notice.
class AcceleratorInternals {
 public:
  static const RunContext& context(Accelerator& accelerator);
  static PreparedObjects& objects(Accelerator& accelerator);
  /// State of the training loop between updates.
  static TrainingStep& step(Accelerator& accelerator);
  static FiniteGuard& finite_guard(Accelerator& accelerator);
  static BackwardRunner& backward_runner(Accelerator& accelerator);
  /// The running scopes of LocalSgd.
  static LocalSgdScopes& local_sgds(Accelerator& accelerator);
  static ActiveLoaders& active_loaders(Accelerator& accelerator);

  // --- functions of Accelerator and LocalSgd for models that are no C++ objects, by address
  /// Prepares objects whose number is known only at run time. Collective.
  static std::vector<Optimizer> prepare(Accelerator& accelerator, GivenObjects objects);
  static GradientScope begin_micro_step(
      Accelerator& accelerator, const std::vector<const void*>& models);
  static GradientScope begin_no_sync(
      Accelerator& accelerator, const std::vector<const void*>& models);
  static void trigger_sync(Accelerator& accelerator, const std::vector<const void*>& models);
  /// Begins Accelerator::join_uneven_inputs. The Accelerator must outlive the scope.
  static CollectiveScope begin_join(Accelerator& accelerator, const JoinUnevenInputs& options);
  static std::shared_ptr<void> begin_zero_init(Accelerator& accelerator);
  static void finish_zero_init(Accelerator& accelerator, const NamedTensors& tensors);
  static void save_model_tensors(
      Accelerator& accelerator,
      const NamedTensors& tensors,
      const std::filesystem::path& folder,
      const checkpoint::SaveModelOptions& options);
  /// Adds a part that checkpoints save, and loads check, before all others.
  static void add_checkpoint_part(Accelerator& accelerator, std::shared_ptr<CheckpointPart> part);
  /// Sets what writes files of its own into each checkpoint, before it is complete.
  static void set_own_files(Accelerator& accelerator, StateSaver::OwnFiles write);
  static void add_checkpointable(Accelerator& accelerator, AnyCheckpointable object);
  /// Sets AcceleratorOptions::project_name, and calls Accelerator::init_trackers. Step records that
  /// have begun keep their folder.
  static void init_trackers(
      Accelerator& accelerator, const std::string& project_name, const nlohmann::json& config);
  static std::unique_ptr<LocalSgd> local_sgd(
      Accelerator& accelerator, const void* model, const LocalSgdScopeOptions& options);
};

}  // namespace lockstep::internal
