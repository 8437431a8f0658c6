// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/engine_core.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/training_state/full_values.h"
#include "lockstep/accelerator/values/operations.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/engine/checkpoint/engine_checkpointer.h"
#include "lockstep/engine/state/engine_context.h"
#include "lockstep/engine/step/engine_backward.h"
#include "lockstep/engine/step/engine_update.h"
#include "lockstep/engine/step/micro_step_meter.h"

namespace lockstep {
namespace {

std::string key_of(const CommsLogRow& row) {
  return fmt::format("{} {} {} {}", row.operation, row.bytes, row.ranks, row.mesh_dims);
}

/// Returns the fastest rank's time of each row. Collective.
std::vector<double> fastest_times(const std::vector<CommsLogRow>& rows, Accelerator& accelerator) {
  nlohmann::json mine = nlohmann::json::object();
  for (const CommsLogRow& row : rows) {
    mine[key_of(row)] = row.total_ms;
  }
  Group group = accelerator.group();
  const std::vector<nlohmann::json> all = gather_object(group, mine);
  std::vector<double> fastest_ms;
  for (const CommsLogRow& row : rows) {
    double least = row.total_ms;
    for (const nlohmann::json& theirs : all) {
      least = std::min(least, theirs.value(key_of(row), row.total_ms));
    }
    fastest_ms.push_back(least);
  }
  return fastest_ms;
}

}  // namespace

/// The objects of one engine, each with one job.
struct EngineCore::Parts {
  explicit Parts(std::shared_ptr<EngineContext> objects)
      : context(std::move(objects)),
        meter(*context),
        backward(std::make_shared<EngineBackward>(*context, meter)),
        update(*context, meter, *backward),
        checkpointer(*context, meter, *backward, update) {
    if (context->has_optimizer()) {
      backward->register_callbacks();
    }
  }

  internal::FullValues full_values() const {
    if (!context->has_optimizer()) {
      throw ConfigError(
          "engine", "the engine has no optimizer, so no parameter is trained; pass one");
    }
    return {
        context->accelerator->mesh().replicas,
        context->optimizer,
        context->loss_scale(),
        backward->gradients_are_averaged()};
  }

  std::shared_ptr<EngineContext> context;
  MicroStepMeter meter;
  std::shared_ptr<EngineBackward> backward;  ///< Shared with callbacks, which hold weak pointers.
  EngineUpdate update;
  EngineCheckpointer checkpointer;
};

EngineCore::EngineCore(std::shared_ptr<EngineContext> context)
    : parts_(
          std::make_shared<std::shared_ptr<Parts>>(std::make_shared<Parts>(std::move(context)))) {}

std::shared_ptr<EngineCore::Parts> EngineCore::live(
    const std::shared_ptr<std::shared_ptr<Parts>>& parts) {
  if (!*parts) {
    throw ConfigError("engine", "the engine is destroyed; call initialize() to create another");
  }
  return *parts;
}

EngineContext& EngineCore::context() const {
  return *live()->context;
}

// --- training

EngineCore::Forward::Forward(const EngineCore& core)
    : parts_(core.live()), checkpointing_(core.activation_checkpointing()) {
  const MicroStepMeter::Start start = core.live()->meter.begin_forward();
  began_ = start.began;
  profiled_ = start.profiled;
}

EngineCore::Forward::~Forward() {
  const std::shared_ptr<Parts> parts = parts_.lock();
  if (!parts) {
    return;  // Destroyed within the forward.
  }
  try {
    parts->meter.end_forward({.began = began_, .profiled = profiled_});
  } catch (const std::exception&) {
    // No memory for the table of modules, or a failed device, which the next call reports. This
    // forward is not counted.
  }
}

std::shared_ptr<ActivationCheckpointing> EngineCore::activation_checkpointing() const {
  return context().activation_checkpointing;
}

std::vector<at::Tensor> EngineCore::checkpoint(
    CheckpointedForward forward,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& parameters) {
  const ActivationCheckpointing::Scope scope(activation_checkpointing());
  return activation_checkpoint(std::move(forward), inputs, parameters);
}

at::Tensor EngineCore::backward(const at::Tensor& loss, const EngineBackwardOptions& options) {
  return live()->backward->backward(loss, options);
}

at::Tensor EngineCore::scale(const at::Tensor& loss) {
  return live()->backward->scale(loss);
}

void EngineCore::step(const EngineStepOptions& options) {
  live()->update.step(options);
}

bool EngineCore::is_gradient_accumulation_boundary() const {
  return context().counter.is_boundary();
}

void EngineCore::set_gradient_accumulation_boundary(bool is_boundary) {
  if (!context().config.managed_gradient_accumulation.value) {
    throw ConfigError(
        "set_gradient_accumulation_boundary",
        "does not work with managed_gradient_accumulation false, where every step() is an update; "
        "delete that key, or remove the call");
  }
  context().counter.set_boundary(is_boundary);
}

GradientScope EngineCore::no_sync() {
  return live()->backward->no_sync();
}

void EngineCore::coalesce_grad_reduction(const std::function<void()>& body) {
  CollectiveScope scope = begin_coalescing();
  body();
  scope.finish();
}

CollectiveScope EngineCore::begin_coalescing() {
  const auto scope = std::make_shared<CollectiveScope>(live()->backward->begin_coalescing());
  return {scope, [scope, parts = parts_] {
            // Throws ConfigError if the block has destroyed the engine.
            const std::shared_ptr<Parts> alive = live(parts);
            scope->finish();
          }};
}

// --- configuration and counts

Accelerator& EngineCore::accelerator() const {
  return *context().accelerator;
}

const ds_config::DsConfig& EngineCore::config() const {
  return context().config;
}

int64_t EngineCore::train_batch_size() const {
  return context().counter.train_batch_size();
}

int64_t EngineCore::train_micro_batch_size_per_gpu() const {
  return context().counter.micro_batch_size();
}

int64_t EngineCore::gradient_accumulation_steps() const {
  return context().counter.gradient_accumulation_steps();
}

void EngineCore::set_train_batch_size(int64_t size) {
  context().counter.set_train_batch_size(size);
}

void EngineCore::set_train_micro_batch_size(int64_t size) {
  context().counter.set_micro_batch_size(size);
}

int EngineCore::zero_optimization_stage() const {
  return static_cast<int>(context().stage());
}

int64_t EngineCore::global_steps() const {
  return context().counter.counts().global_steps;
}

int64_t EngineCore::global_samples() const {
  return context().counter.counts().global_samples;
}

int64_t EngineCore::skipped_steps() const {
  return context().counter.counts().skipped_steps;
}

int64_t EngineCore::micro_steps() const {
  return context().counter.counts().micro_steps;
}

std::vector<double> EngineCore::get_lr() const {
  return context().learning_rates();
}

std::vector<double> EngineCore::get_mom() const {
  return context().momenta();
}

double EngineCore::loss_scale() const {
  return context().loss_scale();
}

bool EngineCore::was_step_applied() const {
  return live()->update.was_step_applied();
}

std::optional<double> EngineCore::get_global_grad_norm() const {
  return live()->update.global_grad_norm();
}

data::LoaderOptions EngineCore::loader_options() const {
  const std::shared_ptr<Parts> parts = live();
  return {
      .batch_size = parts->context->counter.micro_batch_size(),
      .shuffle = true,
      .drop_last = parts->context->config.dataloader_drop_last.value};
}

// --- checkpoints

std::filesystem::path EngineCore::save_checkpoint(
    const std::filesystem::path& save_dir, const std::optional<CheckpointTag>& tag) {
  return save_checkpoint(save_dir, tag, {});
}

std::filesystem::path EngineCore::save_checkpoint(
    const std::filesystem::path& save_dir,
    const std::optional<CheckpointTag>& tag,
    const SaveCheckpointOptions& options) {
  return live()->checkpointer.save(save_dir, tag, options);
}

LoadedCheckpoint EngineCore::load_checkpoint(
    const std::filesystem::path& load_dir,
    const std::optional<CheckpointTag>& tag,
    const LoadCheckpointOptions& options) {
  return live()->checkpointer.load(load_dir, tag, options);
}

// --- full values

at::Tensor EngineCore::safe_get_full_fp32_param(const at::Tensor& parameter) {
  return live()->full_values().parameter(parameter);
}

at::Tensor EngineCore::safe_get_full_grad(const at::Tensor& parameter) {
  return live()->full_values().gradient(parameter);
}

at::Tensor EngineCore::safe_get_full_optimizer_state(
    const at::Tensor& parameter, const std::string& optim_state_key) {
  return live()->full_values().state(parameter, optim_state_key);
}

void EngineCore::safe_set_full_fp32_param(const at::Tensor& parameter, const at::Tensor& value) {
  live()->full_values().set_parameter(parameter, value);
}

void EngineCore::safe_set_full_grad(const at::Tensor& parameter, const at::Tensor& value) {
  live()->full_values().set_gradient(parameter, value);
}

void EngineCore::safe_set_full_optimizer_state(
    const at::Tensor& parameter, const at::Tensor& value, const std::string& optim_state_key) {
  live()->full_values().set_state(parameter, optim_state_key, value);
}

// --- memory, costs, end

std::string EngineCore::log_summary(bool show_straggler) {
  const std::shared_ptr<Parts> parts = live();
  EngineContext& context = *parts->context;
  if (!context.comms_log) {
    throw ConfigError(
        "log_summary", "collectives are not recorded; set comms_logger.enabled in the file");
  }
  const std::vector<CommsLogRow> rows = context.comms_log->rows();
  std::string table = render_comms(
      rows, show_straggler ? fastest_times(rows, *context.accelerator) : std::vector<double>());
  log_info("comms logger\n" + table);
  return table;
}

void EngineCore::destroy() {
  if (!*parts_) {
    return;
  }
  (*parts_)->context->accelerator->wait_for_save();
  const std::shared_ptr<Parts> parts = std::exchange(*parts_, nullptr);
  parts->backward->drop_unfinished_backward();  // It refers to the Accelerator.
  parts->update.reset_grad_norm();
  parts->meter.release();
  parts->context->release();
}

}  // namespace lockstep
