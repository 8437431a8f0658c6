// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/engine_core.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/state/optimizer_settings.h"

namespace lockstep {

/// The micro-step whose backward the update follows, so that all three parts are of one.
bool EngineCore::is_profiled() const {
  return config_.flops_profiler.enabled.value && accelerator().is_main_process() &&
         global_steps_ == config_.flops_profiler.profile_step.value &&
         is_gradient_accumulation_boundary();
}

StepTimers::Clock::time_point EngineCore::synchronized_now() const {
  const at::Device device = accelerator().device();
  if (!device.is_cpu()) {  // Whose work may only have been launched.
    at::accelerator::synchronizeDevice(device.index());
  }
  return StepTimers::Clock::now();
}

Accelerator& EngineCore::accelerator() const {
  if (!accelerator_) {
    throw ConfigError("engine", "is destroyed; initialize() makes another");
  }
  return *accelerator_;
}

StepTimers::Clock::time_point EngineCore::now() const {
  accelerator();  // Else what is asked next is gone.
  return report_->wants_times() || is_profiled() ? synchronized_now() : StepTimers::Clock::now();
}

EngineCore::Forward::Forward(EngineCore& core)
    : core_(core),
      checkpoints_(core.activation_checkpointing_),
      began_(core.now()),
      profiled_(core.is_profiled()) {
  core.tell_memory("before forward");
  if (profiled_) {
    const bool on_cpu = core.accelerator().device().is_cpu();
    core.profile_.modules = core.modules_();
    core.profile_.forward.start(
        on_cpu ? std::function<void()>() : [&core] { core.synchronized_now(); },
        &core.profile_.modules);
  }
}

EngineCore::Forward::~Forward() {
  if (!core_.accelerator_) {
    return;
  }
  try {
    core_.profile_.forward.stop();
    core_.tell_memory("after forward");
    const double ms = StepTimers::add(core_.micro_timers_.forward_ms, began_, core_.now());
    if (profiled_) {
      core_.profile_.forward_ms += ms;
    }
  } catch (const std::exception&) {
    // No memory for the table of modules, or a device that has failed, as the next call will say:
    // this forward is not counted.
  }
}

void EngineCore::tell_profile() {
  profile_.update = config_.flops_profiler.profile_step.value;
  profile_.micro_batch_size = micro_batch_size_;
  profile_.ranks = accelerator().num_processes();
  report_flops(profile_, config_.flops_profiler);
  profile_.clear();
}

std::string EngineCore::log_summary(bool show_straggler) {
  accelerator();  // ConfigError if there is none any more.
  if (!comms_log_) {
    throw ConfigError(
        "log_summary", "collectives are not summed up; set comms_logger.enabled in the file");
  }
  const std::vector<CommsLogRow> rows = comms_log_->rows();
  std::vector<double> fastest_ms;
  if (show_straggler) {
    nlohmann::json mine = nlohmann::json::object();
    const auto key = [](const CommsLogRow& row) {
      return fmt::format("{} {} {}", row.operation, row.bytes, row.ranks);
    };
    for (const CommsLogRow& row : rows) {
      mine[key(row)] = row.total_ms;
    }
    const std::vector<nlohmann::json> all = accelerator().gather_object(mine);
    for (const CommsLogRow& row : rows) {
      double least = row.total_ms;
      for (const nlohmann::json& theirs : all) {
        least = std::min(least, theirs.value(key(row), row.total_ms));
      }
      fastest_ms.push_back(least);
    }
  }
  const std::string table = render_comms(rows, fastest_ms);
  log_info("comms logger\n" + table);
  return table;
}

/// Before anything is updated, and on all ranks alike.
void EngineCore::check_step(const StepOptions& options, bool boundary) {
  if (within_no_sync_) {
    throw ConfigError(
        "step",
        coalescing_
            ? "within coalesce_grad_reduction(), whose gradients are averaged at its end; step "
              "after it"
            : "within no_sync(), whose gradients are not averaged; leave it first");
  }
  if (!has_optimizer_) {
    throw ConfigError("step", "there is no optimizer; add one to the configuration");
  }
  if (std::exchange(scaled_under_way_, false)) {
    forget_unended();
    throw ConfigError(
        "step",
        "the backward of a loss that scale() gave has thrown, and left gradients that are worth "
        "nothing; drop them (optimizer.zero_grad()) before the next backward");
  }
  if (options.metric && !goes_by_metric_) {
    throw ConfigError(
        "step",
        fmt::format(
            "a metric is for a scheduler that needs one, schedule::reduce_on_plateau; got {}; call "
            "step() without it",
            has_scheduler_ ? "one that depends on steps" : "no scheduler"));
  }
  if (boundary && goes_by_metric_ && !options.metric) {
    throw ConfigError(
        "step",
        "the scheduler needs a metric, and got none for this update; call step({.metric = "
        "loss}), with what is the same on all ranks; or prepare the plateau by "
        "engine.accelerator().prepare(...), and step it after each epoch");
  }
}

/// DeepSpeed's clipping is over what its optimizer has. Under ZeRO that is all of the model.
std::vector<at::Tensor> EngineCore::clipped_parameters() const {
  return optimizer_.is_sharded() ? parameters_() : optimizer_.parameters();
}

void EngineCore::update(const StepOptions& options) {
  if (!averaged_) {
    // Of backwards that were to wait for another: within no_sync(), or before the boundary moved.
    accelerator().average_gradients();
    averaged_ = true;
  }
  check_unused();
  if (config_.gradient_clipping.value > 0 || tells_norm()) {
    const double most = config_.gradient_clipping.value > 0
                            ? config_.gradient_clipping.value
                            : std::numeric_limits<double>::infinity();
    norm_ = accelerator().clip_grad_norm_(clipped_parameters(), most);
  }
  optimizer_.step();
  step_applied_ = !optimizer_.step_was_skipped();
  if (options.metric) {  // Schedulers stand still themselves where the update was left out.
    scheduler_.step(*options.metric);
  } else if (has_scheduler_) {
    scheduler_.step();
  }
  optimizer_.zero_grad();
  if (!optimizer_.is_sharded()) {
    for (const at::Tensor& parameter : parameters_()) {  // The optimizer may have but some.
      parameter.mutable_grad().reset();
    }
  }
  ++global_steps_;
  global_samples_ += train_batch_size();
  skipped_steps_ += step_applied_ ? 0 : 1;
}

void EngineCore::step(const StepOptions& options) {
  tell_memory("before step");
  const bool boundary = is_gradient_accumulation_boundary();
  check_step(options, boundary);
  const auto began = now();
  const bool profiled = is_profiled();
  if (boundary) {
    update(options);
  } else {
    step_applied_ = false;
  }
  ++micro_steps_;
  const double ms =
      StepTimers::add(micro_timers_.step_ms, began, profiled ? synchronized_now() : now());
  if (profiled) {
    profile_.step_ms = ms;
    tell_profile();
  }
  tell_memory("after step");
  report_->tell_micro_step(micro_timers_);
  timers_ += std::exchange(micro_timers_, {});
  if (boundary) {
    tell_update();
  }
}

void EngineCore::tell_update() {
  StepFacts facts{
      .global_steps = global_steps_,
      .global_samples = global_samples_,
      .skipped_steps = skipped_steps_,
      .loss = std::nullopt,
      .lr = get_lr(),
      .mom = get_mom(),
      .loss_scale = std::nullopt,
      .timers = std::exchange(timers_, {}),
      .checkpoints = std::nullopt};
  if (report_->wants_loss() && loss_sum_.defined()) {
    facts.loss = loss_sum_.item<double>();
  }
  if (config_.precision.value == ds_config::Dtype::kFloat16) {
    facts.loss_scale = loss_scale();
  }
  if (config_.activation_checkpointing.profile.value) {
    facts.checkpoints = activation_checkpointing_->take_times();
  }
  report_->tell(facts);
  loss_sum_.reset();
}

int64_t EngineCore::train_batch_size() const {
  return micro_batch_size_ * gradient_accumulation_steps_ * accelerator().num_processes();
}

void EngineCore::set_train_batch_size(int64_t size) {
  const int64_t a_micro_step = micro_batch_size_ * accelerator().num_processes();
  if (size < 1 || size % a_micro_step != 0) {
    throw ConfigError(
        "set_train_batch_size",
        fmt::format(
            "only the micro-steps an update can change; got {}, expected a multiple of {} samples "
            "({} ranks of {})",
            size,
            a_micro_step,
            accelerator().num_processes(),
            micro_batch_size_));
  }
  gradient_accumulation_steps_ = size / a_micro_step;
}

void EngineCore::set_train_micro_batch_size(int64_t size) {
  if (size < 1) {
    throw ConfigError(
        "set_train_micro_batch_size", fmt::format("got {}, expected at least 1", size));
  }
  micro_batch_size_ = size;
}

/// As DeepSpeed's optimizers with ZeRO, fp16 or bf16 do where nothing is clipped.
bool EngineCore::tells_norm() const {
  return config_.zero.compute_grad_norm.value &&
         (stage() > 0 || config_.fp16.enabled.value || config_.bf16.enabled.value);
}

std::optional<double> EngineCore::get_global_grad_norm() const {
  return norm_.defined() ? std::optional(norm_.item<double>()) : std::nullopt;
}

FullValues EngineCore::full_values() {
  Group& group = accelerator().group();
  if (!has_optimizer_) {
    throw ConfigError("engine", "without an optimizer no parameter is trained; give it one");
  }
  return {group, optimizer_, loss_scale(), averaged_};
}

std::vector<double> EngineCore::get_lr() const {
  return has_optimizer_ ? optimizer_.learning_rates() : std::vector<double>();
}

/// SGD's momentum, or the first beta of Adam and its like, of each group.
std::vector<double> EngineCore::get_mom() const {
  std::vector<double> all;
  if (!has_optimizer_) {
    return all;
  }
  const auto* flat = dynamic_cast<const optim::FlatOptimizer*>(&optimizer_.inner());
  for (auto& group : optimizer_.inner().param_groups()) {
    const optim::NamedOptions named = flat != nullptr ? flat->named_options(group.options())
                                                      : optim::torch_named_options(group.options());
    for (const optim::NamedOption& option : named) {
      const std::string_view name = option.name;
      if (auto* const* momentum = std::get_if<double*>(&option.value);
          momentum != nullptr && name == "momentum") {
        all.push_back(**momentum);
      }
      if (name != "betas") {
        continue;
      }
      if (auto* const* pair = std::get_if<std::pair<double, double>*>(&option.value)) {
        all.push_back((*pair)->first);
      }
      if (auto* const* tuple = std::get_if<std::tuple<double, double>*>(&option.value)) {
        all.push_back(std::get<0>(**tuple));
      }
    }
  }
  return all;
}

double EngineCore::loss_scale() const {
  if (loss_scale_) {
    accelerator().scaler();  // What the last update did to it counts from now on.
    return loss_scale_->scale();
  }
  GradScaler* scaler = accelerator().scaler();
  return scaler == nullptr ? 1 : scaler->get_scale();
}

}  // namespace lockstep
