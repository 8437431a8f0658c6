// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/engine_core.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep {

/// The micro-step whose backward the update follows, so that all three parts are of one.
bool EngineCore::is_profiled() const {
  return config_.flops_profiler.enabled.value && accelerator().is_main_process() &&
         global_steps_ == config_.flops_profiler.profile_step.value &&
         is_gradient_accumulation_boundary();
}

StepTimers::Clock::time_point EngineCore::settled_now() const {
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
  return report_->wants_times() || is_profiled() ? settled_now() : StepTimers::Clock::now();
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
        on_cpu ? std::function<void()>() : [&core] { core.settled_now(); }, &core.profile_.modules);
  }
}

EngineCore::Forward::~Forward() {
  if (!core_.accelerator_) {
    return;
  }
  try {
    core_.profile_.forward.stop();
    core_.tell_memory("after forward");
  } catch (const std::exception&) {
    // No memory for the table of modules, which will lack this forward.
  }
  const double ms = StepTimers::add(core_.timers_.forward_ms, began_, core_.now());
  if (profiled_) {
    core_.profile_.forward_ms += ms;
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

bool EngineCore::is_gradient_accumulation_boundary() const {
  if (boundary_) {
    return *boundary_;
  }
  return !config_.managed_gradient_accumulation.value ||
         (micro_steps_ + 1) % gradient_accumulation_steps_ == 0;
}

GradientScope EngineCore::no_sync() {
  if (stage() >= 2) {
    throw ConfigError(
        "no_sync",
        fmt::format(
            "goes with stages 0 and 1; got stage {}, in which gradients are divided after every "
            "backward: nothing is gained by waiting",
            stage()));
  }
  if (within_no_sync_) {
    throw ConfigError("no_sync", "is under way already; leave it first");
  }
  within_no_sync_ = true;
  return GradientScope([this] { within_no_sync_ = false; });
}

at::Tensor EngineCore::backward(const at::Tensor& loss, bool scale_wrt_gas) {
  tell_memory("before backward");
  if (!has_optimizer_) {
    throw ConfigError(
        "backward", "there is no optimizer; add one to the configuration, or give initialize one");
  }
  if (!loss.defined() || loss.numel() != 1) {
    throw ConfigError(
        "backward",
        fmt::format(
            "needs a loss of one number; got {}",
            loss.defined() ? fmt::format("{}", loss.numel()) : "none"));
  }
  const auto began = now();
  const at::Tensor divided = scale_wrt_gas && gradient_accumulation_steps_ > 1
                                 ? at::div(loss, static_cast<double>(gradient_accumulation_steps_))
                                 : loss;
  const bool sum = config_.gradient_allreduce_op.value == ds_config::AllreduceOp::kSum;
  const at::Tensor rooted =
      sum ? at::mul(divided, static_cast<double>(accelerator().num_processes())) : divided;
  // Stages 2 and 3 divide gradients after each backward, so that none is whole for long.
  const bool waits = within_no_sync_ || (stage() < 2 && !is_gradient_accumulation_boundary());
  if (waits) {
    const GradientScope held = accelerator().no_sync();
    accelerator().backward(rooted);
  } else {
    accelerator().backward(rooted);
  }
  averaged_ = !waits;
  at::Tensor result = divided.detach();
  if (report_->wants_loss()) {
    const c10::AutoGradMode no_grad(false);
    loss_sum_ = loss_sum_.defined() ? at::add(loss_sum_, result) : result;
  }
  const double ms = StepTimers::add(timers_.backward_ms, began, now());
  if (is_profiled()) {
    profile_.backward_ms += ms;
  }
  tell_memory("after backward");
  return result;
}

void EngineCore::step() {
  tell_memory("before step");
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
  const auto began = now();
  const bool boundary = is_gradient_accumulation_boundary();
  const bool profiled = is_profiled();
  if (boundary) {
    check_unused();
    if (config_.gradient_clipping.value > 0) {
      norm_ = accelerator().clip_grad_norm_(parameters_(), config_.gradient_clipping.value);
    }
    optimizer_.step();
    step_applied_ = !optimizer_.step_was_skipped();
    if (has_scheduler_) {
      scheduler_.step();  // It stands still itself where the update was left out.
    }
    optimizer_.zero_grad();
    averaged_ = true;  // There is nothing left that is not.
    ++global_steps_;
    global_samples_ += train_batch_size();
    skipped_steps_ += step_applied_ ? 0 : 1;
  } else {
    step_applied_ = false;
  }
  ++micro_steps_;
  const double ms = StepTimers::add(timers_.step_ms, began, profiled ? settled_now() : now());
  if (profiled) {
    profile_.step_ms = ms;
    tell_profile();
  }
  tell_memory("after step");
  if (!boundary) {
    return;
  }
  StepFacts facts{
      .global_steps = global_steps_,
      .global_samples = global_samples_,
      .skipped_steps = skipped_steps_,
      .loss = std::nullopt,
      .lr = get_lr(),
      .mom = get_mom(),
      .loss_scale = std::nullopt,
      .timers = timers_,
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
  timers_ = {};
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

/// SGD's momentum, or the betas of Adam and its like, of each group.
std::vector<double> EngineCore::get_mom() const {
  std::vector<double> all;
  if (!has_optimizer_) {
    return all;
  }
  auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer_.inner());
  if (flat == nullptr) {
    return all;
  }
  for (auto& group : flat->param_groups()) {
    for (const optim::NamedOption& option : flat->named_options(group.options())) {
      const std::string name = option.name;
      if (const auto* momentum = std::get_if<double*>(&option.value);
          momentum && name == "momentum") {
        all.push_back(**momentum);
      }
      if (const auto* pair = std::get_if<std::pair<double, double>*>(&option.value);
          pair && name == "betas") {
        all.push_back((*pair)->first);
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
