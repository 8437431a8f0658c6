// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/accelerator/loop/scheduler.h"
#include "lockstep/accelerator/prepare/divided_experts.h"
#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/accelerator/step/optimizer.h"
#include "lockstep/accelerator/training_state/checkpointable.h"
#include "lockstep/accelerator/zero_setup/zero_units.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/pipeline/stage.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/gradient_sync.h"
#include "lockstep/tensor_parallel/tensor_parallel.h"
#include "lockstep/zero/sharding.h"

namespace lockstep::internal {

struct PreparedModel {
  const void* id;  ///< The module's address.
  /// The prefix of its parameters' names in checkpoints: "" for the first model, then "model_1."
  std::string prefix;
  std::function<NamedTensors()> parameters;
  std::function<NamedTensors()> buffers;
  std::function<NamedClasses()> classes;
  std::shared_ptr<DataParallel> parallel;  ///< Inactive under ZeRO.
  /// `parallel`, or the sharding; null under ZeRO until the model is sharded.
  std::shared_ptr<GradientSync> sync;
  /// The division of its layers; null without tp.
  std::shared_ptr<tensor_parallel::TensorParallel> divided = nullptr;
  /// The stage of a pipeline that it is; null if it is none.
  std::shared_ptr<pipeline::Stage> pipeline = nullptr;
  /// The experts that this process and others divide; null without ep.
  std::shared_ptr<const DividedExperts> experts = nullptr;
};

/// The registry of the objects that an Accelerator has prepared, in the order of prepare().
struct PreparedObjects {
  explicit PreparedObjects(const RunContext& run_context) : context(run_context) {}

  const RunContext& context;
  std::vector<PreparedModel> models;
  std::vector<Optimizer> optimizers;
  std::vector<Scheduler> schedulers;
  std::vector<std::shared_ptr<data::LoaderCore>> loaders;
  /// Under ZeRO, once model and optimizer are prepared.
  std::shared_ptr<zero::Sharding> sharding;
  /// The states of optimizers whose classes have state_dict() and load_state_dict().
  std::map<const torch::optim::Optimizer*, AnyCheckpointable> own_optimizer_states;
  /// A model has 16-bit parameters, for which ZeRO may have masters.
  bool trains_in_16_bits = false;

  /// Returns the model of a module, or null.
  const PreparedModel* find_model(const void* id) const;
  /// Returns the addresses of the parameters of all models.
  std::set<const void*> parameters() const;
  /// Returns the optimizer's state_dict() and load_state_dict(); null if its class has none.
  const AnyCheckpointable* own_state_of(const Optimizer& optimizer) const;

  /// Returns the names of all models' parameters in checkpoints. The function throws ConfigError,
  /// in the name of `where`, for another parameter.
  ParameterName parameter_names(const char* where) const;
  /// Does the same after a check that all parameters of all optimizers have names. Throws
  /// ConfigError if not, and for an optimizer whose state cannot be read.
  ParameterName optimizer_names(const char* where) const;

  /// Returns whether the optimizer is one of `optimizers`.
  bool has_optimizer(const Optimizer& optimizer) const;
  /// Returns whether `parameter` belongs to a prepared optimizer.
  bool is_in_optimizer(const at::Tensor& parameter) const;
  /// Returns whether the last due step() of any optimizer skipped the update.
  bool any_step_was_skipped() const;

  /// Returns the division of a parameter's model; null if this process has all of the parameter.
  tensor_parallel::TensorParallel* division_of(const at::Tensor& parameter) const;
  /// Returns the stage of a pipeline that the model is; null if this process has all layers.
  const pipeline::Stage* stage() const;
  /// Returns whether `parameter` is an expert's that not all processes have.
  bool is_expert(const at::Tensor& parameter) const;
  /// Returns the processes that have the same values of `parameter`, and average its gradient.
  const Group& replicas_of(const at::Tensor& parameter) const {
    return is_expert(parameter) ? context.mesh.expert_replicas : context.mesh.replicas;
  }
  /// Returns whether this process has a part of a model only, by tp, ep or pp.
  bool is_divided() const;
  /// Throws ConfigError, in the name of `where`, if a model is divided. `because`: the reason.
  void refuse_divided(const char* where, const char* because) const;

  /// Returns whether ZeRO applies: there is something to shard, offload, or keep masters of.
  bool uses_zero() const;
  /// Returns whether stage 3 shards the parameters of the prepared model.
  bool shards_parameters() const;
  /// Returns whether the main process saves the sharded model as full tensors.
  bool saves_full_state_dict() const;
  /// Throws ConfigError, in the name of `where`, under ZeRO. `because`: the reason, a clause.
  void refuse_zero(const char* where, const char* because) const;
  /// Throws ConfigError, in the name of `where`, with shared_parameters.
  void refuse_shared_parameters(const char* where, const char* because) const;

  /// Forgets all objects, and stops observing the loaders.
  void clear();
};

}  // namespace lockstep::internal
