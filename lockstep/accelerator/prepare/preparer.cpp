// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/preparer.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/loader_facts.h"
#include "lockstep/accelerator/prepare/divide.h"
#include "lockstep/accelerator/prepare/divided_experts.h"
#include "lockstep/accelerator/prepare/pipeline_stage.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/prepare/shard.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/accelerator/training_state/saved_optimizer.h"
#include "lockstep/accelerator/zero_setup/dtypes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/move_in_place.h"
#include "lockstep/flat/parameters.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/zero/bucket/low_precision_policy.h"

namespace lockstep::internal {
namespace {

/// Throws ConfigError for parameters of two models: a gradient cannot be in the buckets of both.
void refuse_common_parameters(
    const std::vector<PreparedModel>& models, const NamedTensors& parameters) {
  for (const PreparedModel& model : models) {
    for (const NamedTensor& theirs : model.parameters()) {
      for (const NamedTensor& ours : parameters) {
        if (ours.tensor.is_same(theirs.tensor)) {
          throw ConfigError(
              "prepare",
              fmt::format(
                  "parameter {} of this model is parameter {} of a model that is already prepared; "
                  "prepare one module that holds both",
                  ours.name,
                  theirs.name));
        }
      }
    }
  }
}

}  // namespace

Preparer::Preparer(
    PreparedObjects& objects,
    std::shared_ptr<TrainingStep> step,
    std::shared_ptr<ActiveLoaders> active,
    ZeroInit& zero_init)
    : objects_(objects),
      step_(std::move(step)),
      active_(std::move(active)),
      zero_init_(zero_init) {}

std::vector<Optimizer> Preparer::prepare_given(GivenObjects objects) {
  clear();
  for (GivenModel& model : objects.models) {
    add_model(std::move(model));
  }
  for (std::shared_ptr<data::LoaderCore>& loader : objects.loaders) {
    add_loader(std::move(loader));
  }
  std::vector<Optimizer> optimizers;
  for (GivenOptimizer& optimizer : objects.optimizers) {
    optimizers.push_back(add_optimizer(std::move(optimizer)));
  }
  end();
  return optimizers;
}

void Preparer::add_model(GivenModel model) {
  if (objects_.find_model(model.id) != nullptr) {
    return;
  }
  const RunContext& context = objects_.context;
  const AcceleratorOptions& options = context.options;
  refuse_common_parameters(objects_.models, model.parameters());
  const flat::CommDtypes reduced =
      comm_dtypes(options.lower_precision_safe_modules, model.parameters(), model.classes());
  if (options.device_placement) {
    flat::move_in_place(tensors_of(model.parameters()), context.device);
    flat::move_in_place(tensors_of(model.buffers()), context.device);
  }
  prepare_stage(context, model, objects_.models.empty(), step_);
  const size_t index = objects_.models.size();
  const std::string prefix = index == 0 ? "" : fmt::format("model_{}.", index);
  for (const NamedTensor& item : trainable(model.parameters())) {
    objects_.trains_in_16_bits =
        objects_.trains_in_16_bits || zero::is_trained_in_16_bits(item.tensor);
  }
  const std::shared_ptr<DividedExperts> experts =
      divide_experts(context, model.experts ? model.experts() : expert_parallel::ModelExperts());
  std::shared_ptr<tensor_parallel::TensorParallel> divided =
      divide_model(context, model, objects_.models.empty(), experts.get());
  // After the division: hooks of a gradient keep its sizes.
  NamedTensors named = model.parameters();
  for (NamedTensor& item : named) {
    item.name = prefix + item.name;
  }
  step_->notify(&TrainingStepObserver::model_given, named);
  // Buckets of different models must not wait for each other: each further model has its own group.
  const auto group_of_model = [index](Group shared) {
    return index == 0 ? shared : shared.split(0);
  };
  Group group = group_of_model(context.mesh.replicas);
  auto parallel = std::make_shared<DataParallel>(
      without_experts(model.parameters(), experts.get()),
      model.buffers(),
      objects_.uses_zero() ? Group() : std::move(group),
      options.data_parallel,
      reduced);
  std::shared_ptr<GradientSync> sync = objects_.uses_zero() ? nullptr : parallel;
  if (experts && !objects_.uses_zero()) {
    experts->parallel = std::make_shared<DataParallel>(
        experts->own,
        NamedTensors(),
        group_of_model(context.mesh.expert_replicas),
        options.data_parallel,
        reduced);
    sync = joint_sync(parallel, experts->parallel);
  }
  objects_.models.push_back(
      {model.id,
       prefix,
       std::move(model.parameters),
       std::move(model.buffers),
       std::move(model.classes),
       std::move(parallel),
       std::move(sync),
       std::move(divided),
       std::move(model.pipeline),
       experts});
}

void Preparer::add_loader(std::shared_ptr<data::LoaderCore> loader) {
  auto& loaders = objects_.loaders;
  if (std::find(loaders.begin(), loaders.end(), loader) != loaders.end()) {
    return;
  }
  const RunContext& context = objects_.context;
  const AcceleratorOptions& options = context.options;
  // Python has sharded its loaders already, and its Accelerator's even_batches can be set.
  const bool even = loader->is_sharded() ? loader->spec().even_batches : options.even_batches;
  loader->shard(
      {.rank = context.mesh.data.rank(),
       .world = context.mesh.data.size(),
       .even_batches = even,
       .split_batches = options.split_batches,
       .dispatch_batches = options.dispatch_batches},
      context.mesh.data);
  if (options.device_placement && !context.device.is_cpu() && !loader->options().device) {
    loader->set_device(context.device);
  }
  loader->set_observer(active_);
  expect_equal_loader(*loader, loaders.size(), context.group);
  loaders.push_back(std::move(loader));
}

Optimizer Preparer::add_optimizer(GivenOptimizer given) {
  auto& optimizers = objects_.optimizers;
  auto known = std::find_if(optimizers.begin(), optimizers.end(), [&](const Optimizer& prepared) {
    return &prepared.inner() == given.optimizer.get();
  });
  if (known == optimizers.end()) {
    const bool has_experts = std::ranges::any_of(
        objects_.models, [](const PreparedModel& model) { return model.experts != nullptr; });
    if (objects_.context.mesh.tensor.size() > 1) {
      expect_elementwise(*given.optimizer, "tensor parallelism gives each process a part of them");
    } else if (has_experts && objects_.uses_zero()) {
      expect_elementwise(
          *given.optimizer, "ZeRO shards experts over other processes than the other parameters");
    }
    if (given.own_state) {
      if (has_experts) {
        throw ConfigError(
            "prepare",
            "an optimizer of an own class has experts' parameters, whose state on other processes "
            "a checkpoint would lack; expected one of lockstep::optim or torch::optim");
      }
      objects_.own_optimizer_states.insert_or_assign(
          given.optimizer.get(), std::move(*given.own_state));
    } else if (!objects_.context.options.project_dir.empty()) {
      expect_readable_state(*given.optimizer, "prepare", "this run has a project_dir to save to");
    }
    optimizers.emplace_back(std::move(given.optimizer), step_);
    known = optimizers.end() - 1;
  }
  optimizers_in_call_.push_back(*known);
  return *known;
}

Scheduler Preparer::add_schedule(AnySchedule schedule) {
  const AcceleratorOptions& options = objects_.context.options;
  const bool accelerate = options.scheduler_steps == SchedulerSteps::kAccelerate;
  const SchedulerPolicy policy{
      .with_optimizer = options.step_scheduler_with_optimizer,
      .inner_steps = accelerate && !options.split_batches ? objects_.context.mesh.data.size() : 1,
      .accelerate = accelerate,
      .count_micro_steps = step_->accumulation().adjust_scheduler.value_or(accelerate)};
  return unbound_.emplace_back(std::move(schedule), policy, step_);
}

void Preparer::end() {
  for (Scheduler& scheduler : unbound_) {
    scheduler.bind(optimizers_in_call_.empty() ? objects_.optimizers : optimizers_in_call_);
    objects_.schedulers.push_back(scheduler);
    if (objects_.context.options.print_schedules) {
      log_info(scheduler.describe());
    }
  }
  unbound_.clear();
  for (const Optimizer& optimizer : objects_.optimizers) {  // Those of earlier calls, too.
    follow_parameters(optimizer.inner());
  }
  share_parameters(objects_, optimizers_in_call_);
  shard_objects(objects_, optimizers_in_call_, zero_init_);
}

void Preparer::clear() {
  optimizers_in_call_.clear();
  unbound_.clear();
}

}  // namespace lockstep::internal
