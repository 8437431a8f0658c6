// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/accelerator/loop/scheduler.h"
#include "lockstep/accelerator/prepare/prepare.h"
#include "lockstep/accelerator/step/optimizer.h"
#include "lockstep/accelerator/zero_setup/zero_units.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/tensor_parallel/tensor_parallel.h"

namespace lockstep::pipeline {
class Stage;
}  // namespace lockstep::pipeline

namespace lockstep::internal {

class ActiveLoaders;
class ZeroInit;
struct PreparedObjects;

/// A model of any kind, as functions that return its current tensors and classes.
struct GivenModel {
  const void* id;  ///< The module's address.
  std::function<NamedTensors()> parameters;
  std::function<NamedTensors()> buffers;
  std::function<NamedClasses()> classes;
  /// Sets the mode without dropout, and returns a function that restores the modes. May be null.
  std::function<std::function<void()>()> evaluate = nullptr;
  /// The plan that the model has itself; it replaces that of the options.
  std::optional<TensorParallelOptions> tensor_parallel = std::nullopt;
  /// This rank's part of a pipeline; null for a model that is none.
  std::shared_ptr<pipeline::Stage> pipeline = nullptr;
  /// Returns the experts that processes may divide. May be null.
  std::function<expert_parallel::ModelExperts()> experts = nullptr;
};

/// Objects for one call of prepare().
struct GivenObjects {
  std::vector<GivenModel> models;
  std::vector<std::shared_ptr<data::LoaderCore>> loaders;
  std::vector<GivenOptimizer> optimizers;
};

/// Prepares objects for one Accelerator, and registers them.
class Preparer {
 public:
  /// Registers objects in `objects`. Optimizers and schedulers share `step`; `active` observes the
  /// loaders; the sharding takes over the shards of `zero_init`.
  Preparer(
      PreparedObjects& objects,
      std::shared_ptr<TrainingStep> step,
      std::shared_ptr<ActiveLoaders> active,
      ZeroInit& zero_init);

  /// Prepares models and loaders, then the others, and returns all of them as a tuple. See
  /// Accelerator::prepare. Throws ConfigError for objects that do not fit each other or the
  /// options. Collective.
  template <typename... Objects>
  auto prepare(Objects&&... objects) {
    clear();
    (prepare_first(objects), ...);
    std::tuple prepared{prepare_one(std::forward<Objects>(objects))...};
    end();
    return prepared;
  }
  /// Does the same for objects whose number is known only at run time. Returns the optimizers.
  std::vector<Optimizer> prepare_given(GivenObjects objects);
  /// Forgets the objects of the last prepare().
  void clear();

 private:
  template <typename Object>
  void prepare_first(Object& object) {
    using Type = std::remove_cvref_t<Object>;
    refuse_torch_loader<Type>();
    static_assert(
        TorchLoaderHandle<Type> || ModuleHandle<Type> || OptimizerHandle<Type> ||
            LoaderHandle<Type> || ScheduleHandle<Type> || std::is_same_v<Type, Optimizer> ||
            std::is_same_v<Type, Scheduler>,
        "prepare takes modules (a holder made by TORCH_MODULE, or a shared_ptr), optimizers of "
        "lockstep::optim or torch::optim, schedules of lockstep::schedule and lockstep::data "
        "loaders");
    if constexpr (ModuleHandle<Type>) {
      std::shared_ptr<pipeline::Stage> stage;
      if constexpr (requires { object->stage(); }) {
        stage = object->stage();
      }
      add_model(
          {.id = object.get(),
           .parameters = [object] { return parameters_of(*object); },
           .buffers = [object] { return buffers_of(*object); },
           .classes = [object] { return classes_of(*object); },
           .evaluate = [held = Type(object)]() mutable { return set_evaluation_mode(*held); },
           .pipeline = std::move(stage),
           .experts = [object] { return experts_of_module(*object); }});
    } else if constexpr (LoaderHandle<Type>) {
      add_loader(object.core());
    }
  }
  template <typename Object>
  auto prepare_one(Object&& object) {
    using Type = std::remove_cvref_t<Object>;
    if constexpr (OptimizerHandle<Type>) {
      return add_optimizer(given_optimizer(std::forward<Object>(object)));
    } else if constexpr (ScheduleHandle<Type>) {
      return add_schedule(std::forward<Object>(object));
    } else {
      return prepared_itself(std::forward<Object>(object));
    }
  }

  /// Moves the model to the device, gives it rank 0's weights, and lets its gradients be averaged.
  /// Does nothing for a prepared model. Throws ConfigError for a parameter of another one.
  /// Collective.
  void add_model(GivenModel model);
  /// Gives the loader its shard. Does nothing for a prepared loader. Throws ConfigError if ranks
  /// have different seeds. Collective.
  void add_loader(std::shared_ptr<data::LoaderCore> loader);
  Optimizer add_optimizer(GivenOptimizer given);
  /// Adds a schedule, which has no optimizers until end().
  Scheduler add_schedule(AnySchedule schedule);
  /// Binds schedules to optimizers, and shards or shares parameters. Collective.
  void end();

  PreparedObjects& objects_;
  std::shared_ptr<TrainingStep> step_;
  std::shared_ptr<ActiveLoaders> active_;
  ZeroInit& zero_init_;
  std::vector<Optimizer> optimizers_in_call_;  ///< Of the last prepare().
  std::vector<Scheduler> unbound_;             ///< Added, and not bound yet.
};

}  // namespace lockstep::internal
