// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/accelerator.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/setup/either_variable.h"
#include "lockstep/accelerator/setup/enter_world.h"
#include "lockstep/accelerator/training_state/saved_optimizer.h"
#include "lockstep/accelerator/zero_setup/lower_precision.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/memory/keep_memory.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/flat/layout.h"
#include "lockstep/flat/move_in_place.h"
#include "lockstep/optim/state/follow_parameters.h"
#include "lockstep/precision/cpu_bf16.h"
#include "lockstep/sync/reducer.h"
#include "lockstep/watch/flight_recorder.h"
#include "lockstep/zero/bucket/shard_store.h"

namespace lockstep {
namespace {

/// Warns once a process: a program may make many Accelerators.
void warn_of_emulated_bf16() {
  static std::once_flag warned;
  std::call_once(warned, [] {
    log_warning(
        "[accelerator] mixed_precision is bf16, and this CPU has no bf16 instructions: libtorch "
        "emulates them, which is several times slower than float32; set mixed_precision to no on "
        "this machine (lockstep::cpu_has_bf16() tells a program which CPUs have them)");
  });
}

GradientAccumulationPlugin accumulation_of(
    const AcceleratorOptions& options, const Environment& environment) {
  if (options.gradient_accumulation_plugin && options.gradient_accumulation_steps != 1) {
    throw ConfigError(
        "accelerator",
        "gradient_accumulation_steps and gradient_accumulation_plugin are both set; give one");
  }
  const auto deepspeed = options.deepspeed_plugin
                             ? options.deepspeed_plugin->gradient_accumulation_steps
                             : std::nullopt;
  if (deepspeed &&
      (options.gradient_accumulation_plugin || options.gradient_accumulation_steps != 1)) {
    throw ConfigError(
        "accelerator",
        "deepspeed_plugin and the Accelerator's own options both say how many steps gradients are "
        "accumulated; say it once");
  }
  GradientAccumulationPlugin plugin =
      options.gradient_accumulation_plugin.value_or(GradientAccumulationPlugin{
          .num_steps = deepspeed.value_or(options.gradient_accumulation_steps)});
  const std::string name = "GRADIENT_ACCUMULATION_STEPS";
  for (const std::string prefix : {"ACCELERATE_", "LOCKSTEP_"}) {
    plugin.num_steps =
        environment.integer(prefix + name, 1, int64_t{1} << 30).value_or(plugin.num_steps);
  }
  if (plugin.num_steps < 1) {
    throw ConfigError(
        "accelerator",
        fmt::format("expected 1 or more gradient accumulation steps; got {}", plugin.num_steps));
  }
  if (plugin.adjust_scheduler && options.scheduler_steps != SchedulerSteps::kAccelerate) {
    throw ConfigError(
        "accelerator",
        "adjust_scheduler means something with scheduler_steps = SchedulerSteps::kAccelerate only; "
        "otherwise a schedule counts updates");
  }
  return plugin;
}

/// ConfigError if ranks would cut their shares out of different orders. Collective, unless one rank
/// reads for all.
void expect_same_order(const data::LoaderCore& loader, Group& group) {
  if (group.size() == 1 || loader.dispatches()) {
    return;
  }
  const uint64_t seed = loader.cursor().seed;
  const std::vector<std::string> seeds = all_gather_bytes(group, fmt::format("{}", seed));
  for (size_t rank = 1; rank < seeds.size(); ++rank) {
    if (seeds[rank] != seeds[0]) {
      throw ConfigError(
          "prepare",
          fmt::format(
              "the seed of a loader differs between processes, so some samples would come twice "
              "and others never; rank 0 has {}, rank {} has {}; give all the same (--seed, "
              "LoaderOptions::seed)",
              seeds[0],
              rank,
              seeds[rank]));
    }
  }
}

/// Two buckets cannot both hold one gradient.
template <typename Models>
void refuse_common_parameters(const Models& models, const NamedTensors& parameters) {
  for (const auto& model : models) {
    for (const NamedTensor& theirs : model.parameters()) {
      for (const NamedTensor& ours : parameters) {
        if (ours.tensor.is_same(theirs.tensor)) {
          throw ConfigError(
              "prepare",
              fmt::format(
                  "{} of this model is {} of a model prepared before; prepare one module that "
                  "holds both",
                  ours.name,
                  theirs.name));
        }
      }
    }
  }
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options) : state_(std::make_unique<State>()) {
  state_->world = enter_world(Environment::process());
  Connection connection = connect_renewable(state_->world, options.connect);
  state_->group = std::move(connection.group);
  state_->transport = std::move(connection.transport);
  state_->options = std::move(options);
  configure();
  log_debug(fmt::format(
      "rank {} of {} ({}), transport {}",
      state_->world.rank,
      state_->world.size,
      state_->world.source,
      state_->group.transport_name()));
}

Accelerator::Accelerator(AcceleratorOptions options, WorldSpec world, Group group)
    : state_(std::make_unique<State>()) {
  if (world.rank != group.rank() || world.size != group.size()) {
    throw ConfigError(
        "accelerator",
        fmt::format(
            "the world says rank {} of {}, the group rank {} of {}",
            world.rank,
            world.size,
            group.rank(),
            group.size()));
  }
  state_->options = std::move(options);
  state_->world = std::move(world);
  state_->group = std::move(group);
  configure();
}

Accelerator::~Accelerator() {
  // Loaders may outlive this.
  state_->active->set_before_pass(nullptr);
  state_->active->set_between_batches(nullptr);
  if (std::uncaught_exceptions() ==
      0) {  // Else it has failed, which the others are not to take for leaving.
    watch::FlightRecorder::process().leave();
  }
}

void Accelerator::configure() {
  keep_freed_memory();
  State& state = *state_;
  const AcceleratorOptions& options = state.options;
  const Environment environment = Environment::process();
  state.precision = options.mixed_precision.value_or(Precision::kNo);
  if (!options.mixed_precision) {
    if (const auto text = either_text(environment, "MIXED_PRECISION")) {
      state.precision = parse_precision(*text);
    }
  }
  state.debug = options.debug.value_or(either_boolean(environment, "DEBUG_MODE").value_or(false));
  for (const data::RngType type : options.rng_types) {
    if (type == data::RngType::kGenerator) {
      throw ConfigError(
          "accelerator",
          "rng_types cannot hold kGenerator: loaders have no generator, their order is a function "
          "of seed and epoch; use kTorch for augmentation that draws from torch's");
    }
  }
  state.active = std::make_shared<ActiveLoaders>(state.group, options.rng_types);
  LoopState& loop = *state.loop;
  loop.accumulation = accumulation_of(options, environment);
  loop.finite = std::make_shared<FiniteGuard>(options.non_finite, state.group);
  if (state.precision == Precision::kFP16) {
    loop.scaler.emplace(options.grad_scaler, state.group);
    loop.loss_scale_rule = options.loss_scale_rule;
  }
  choose_device();
  if (state.precision == Precision::kBF16 && device().is_cpu() && is_local_main_process() &&
      !cpu_has_bf16(environment)) {
    warn_of_emulated_bf16();
  }
  choose_zero();
  check_zero();
  configure_project();
}

int Accelerator::process_index() const {
  return state_->world.rank;
}

int Accelerator::num_processes() const {
  return state_->world.size;
}

int Accelerator::local_process_index() const {
  return state_->world.local_rank;
}

bool Accelerator::is_main_process() const {
  return process_index() == 0;
}

bool Accelerator::is_local_main_process() const {
  return local_process_index() == 0;
}

bool Accelerator::is_last_process() const {
  return process_index() == num_processes() - 1;
}

bool Accelerator::use_distributed() const {
  return num_processes() > 1;
}

std::string Accelerator::distributed_type() const {
  if (!use_distributed()) {
    return "NO";
  }
  return device().is_cpu() ? "MULTI_CPU" : "MULTI_GPU";
}

at::Device Accelerator::device() const {
  return state_->device;
}

const WorldSpec& Accelerator::world() const {
  return state_->world;
}

Group& Accelerator::group() {
  return state_->group;
}

void Accelerator::add_model(const void* id, Tensors parameters, Tensors buffers, Classes classes) {
  State& state = *state_;
  if (std::any_of(state.models.begin(), state.models.end(), [&](const auto& model) {
        return model.id == id;
      })) {
    return;
  }
  refuse_common_parameters(state.models, parameters());
  const flat::CommDtypes narrow =
      comm_dtypes(state.options.lower_precision_safe_modules, parameters(), classes());
  if (state.options.device_placement) {
    flat::move_in_place(tensors_of(parameters()), state.device);
    flat::move_in_place(tensors_of(buffers()), state.device);
  }
  state.accumulation_check.forget();
  const size_t index = state.models.size();
  const std::string prefix = index == 0 ? "" : fmt::format("model_{}.", index);
  if (!state.loop->scaler) {
    NamedTensors named = parameters();
    for (NamedTensor& item : named) {
      item.name = prefix + item.name;
    }
    state.loop->finite->watch(named);
  }
  for (const NamedTensor& item : trainable(parameters())) {
    state.trains_in_16_bits = state.trains_in_16_bits || zero::is_trained_in_16_bits(item.tensor);
  }
  // Buckets of different models must not wait for each other: each further model has a group of its
  // own.
  Group group = index == 0 ? state.group : state.group.split(0);
  auto parallel = std::make_shared<DataParallel>(
      parameters(),
      buffers(),
      is_sharded() ? Group() : std::move(group),
      state.options.data_parallel,
      narrow);
  std::shared_ptr<GradientSync> sync = is_sharded() ? nullptr : parallel;
  state.models.push_back(
      {id,
       prefix,
       std::move(parameters),
       std::move(buffers),
       std::move(classes),
       parallel,
       std::move(sync)});
  state.parallels.push_back(std::move(parallel));
}

void Accelerator::add_loader(std::shared_ptr<data::LoaderCore> loader) {
  State& state = *state_;
  if (std::find(state.loaders.begin(), state.loaders.end(), loader) != state.loaders.end()) {
    return;
  }
  loader->shard(
      {.rank = state.world.rank,
       .world = state.world.size,
       .even_batches = state.options.even_batches,
       .split_batches = state.options.split_batches,
       .dispatch_batches = state.options.dispatch_batches},
      state.group);
  if (state.options.device_placement && !state.device.is_cpu() && !loader->options().device) {
    loader->set_device(state.device);
  }
  loader->set_observer(state.active);
  expect_same_order(*loader, state.group);
  state.loaders.push_back(std::move(loader));
}

Optimizer Accelerator::add_optimizer(GivenOptimizer given) {
  State& state = *state_;
  auto known = std::find_if(
      state.optimizers.begin(), state.optimizers.end(), [&](const Optimizer& prepared) {
        return &prepared.inner() == given.optimizer.get();
      });
  if (known == state.optimizers.end()) {
    if (given.own_state) {
      state.own_optimizer_states.insert_or_assign(
          given.optimizer.get(), std::move(*given.own_state));
    } else if (!state.options.project_dir.empty()) {
      expect_readable_state(*given.optimizer, "prepare", "this run has a project_dir to save to");
    }
    state.optimizers.emplace_back(std::move(given.optimizer), state.loop);
    known = state.optimizers.end() - 1;
  }
  state.optimizers_in_call.push_back(*known);
  return *known;
}

void Accelerator::begin_prepare() {
  state_->optimizers_in_call.clear();
  state_->unbound.clear();
}

Scheduler Accelerator::add_schedule(AnySchedule schedule) {
  State& state = *state_;
  const AcceleratorOptions& options = state.options;
  const bool accelerate = options.scheduler_steps == SchedulerSteps::kAccelerate;
  const SchedulerPolicy policy{
      .with_optimizer = options.step_scheduler_with_optimizer,
      .inner_steps = accelerate && !options.split_batches ? num_processes() : 1,
      .accelerate = accelerate,
      .count_micro_steps = state.loop->accumulation.adjust_scheduler.value_or(accelerate)};
  return state.unbound.emplace_back(std::move(schedule), policy, state.loop);
}

void Accelerator::end_prepare() {
  State& state = *state_;
  for (Scheduler& scheduler : state.unbound) {
    scheduler.bind(state.optimizers_in_call.empty() ? state.optimizers : state.optimizers_in_call);
    state.schedulers.push_back(scheduler);
    if (state.options.print_schedules) {
      log_info(scheduler.describe());
    }
  }
  state.unbound.clear();
  for (const Optimizer& optimizer : state.optimizers) {  // Of earlier calls, too.
    optim::follow_parameters(optimizer.inner());
  }
  share_parameters();
  shard_parameters();
  state.watch_accumulation();
  if (state.loop->accumulation.num_steps > 1 && !state.judged_by_others &&
      state.judged_models != state.models.size()) {
    watch_unknown_backwards([this] { state_->refuse_undivided_backward(); });
    state.judged_by_others = false;
    state.judged_models = state.models.size();
  }
  if (use_distributed()) {
    state.loop->agree_on_unprepared = [this, alive = std::weak_ptr<const void>(state.alive)](
                                          const std::vector<at::Tensor>& parameters) {
      return alive.expired() || state_->agree_on_unprepared(parameters);
    };
  }
}

EpochRange Accelerator::epochs(int64_t count) {
  resume_if_asked(/*in_epochs=*/true);
  const int64_t begin = state_->loaders.empty() ? 0 : state_->loaders.front()->epoch();
  return {begin, count};
}

}  // namespace lockstep
