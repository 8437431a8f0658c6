// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/step/engine_update.h"

#include <algorithm>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/accelerator/diagnostics/finite_guard.h"
#include "lockstep/accelerator/internals.h"
#include "lockstep/base/error.h"

namespace lockstep {

void EngineUpdate::step(const EngineStepOptions& options) {
  meter_.log_memory("before step");
  const bool is_boundary = context_.counter.is_boundary();
  backward_.check_before_step();
  check_step(options, is_boundary);
  const MicroStepMeter::Start start = meter_.begin_step();
  if (is_boundary) {
    update(options);
  } else {
    step_was_applied_ = false;
  }
  context_.counter.end_micro_step();
  meter_.end_step(start, is_boundary);
}

std::optional<double> EngineUpdate::global_grad_norm() const {
  return norm_.defined() ? std::optional(norm_.item<double>()) : std::nullopt;
}

/// Throws before anything is updated, on all ranks alike.
void EngineUpdate::check_step(const EngineStepOptions& options, bool is_boundary) const {
  if (!context_.has_optimizer()) {
    throw ConfigError("step", "the engine has no optimizer; add one to the configuration");
  }
  if (options.metric && !context_.scheduler_needs_metric) {
    throw ConfigError(
        "step",
        fmt::format(
            "a metric needs the scheduler schedule::reduce_on_plateau; got {}; call step() "
            "without it",
            context_.has_scheduler() ? "a scheduler that depends on steps" : "no scheduler"));
  }
  if (is_boundary && context_.scheduler_needs_metric && !options.metric) {
    throw ConfigError(
        "step",
        "the scheduler needs a metric, and got none for this update; call step({.metric = loss}) "
        "with a value that is the same on all ranks; or prepare the scheduler by "
        "engine.accelerator().prepare(...), and step it after each epoch");
  }
}

void EngineUpdate::update(const EngineStepOptions& options) {
  backward_.average_pending_gradients();
  check_unused_parameters();
  clip_gradients();
  context_.optimizer.step();
  step_was_applied_ = !context_.optimizer.step_was_skipped();
  if (options.metric) {  // Schedulers ignore skipped updates themselves.
    context_.scheduler.step(*options.metric);
  } else if (context_.has_scheduler()) {
    context_.scheduler.step();
  }
  drop_gradients();
  context_.counter.end_update(step_was_applied_);
}

/// Implements DeepSpeed's ignore_unused_parameters. All ranks find the same names.
void EngineUpdate::check_unused_parameters() const {
  constexpr size_t kMostNames = 8;
  const auto& ignore = context_.config.zero.ignore_unused_parameters;
  if (ignore.value || (context_.stage() != 1 && context_.stage() != 2)) {
    return;
  }
  std::vector<std::string> names = context_.accelerator->parameters_without_gradient();
  if (names.empty()) {
    return;
  }
  const size_t count = names.size();
  names.resize(std::min(count, kMostNames));
  throw ConfigError(
      "step",
      fmt::format(
          "{}{} got no gradient in this update on any rank, and "
          "zero_optimization.ignore_unused_parameters is false ({}); let the loss depend on {}, "
          "freeze {} (requires_grad_(false)) before initialize(), or set the key to true",
          fmt::join(names, ", "),
          count > kMostNames ? fmt::format(" and {} more parameters", count - kMostNames) : "",
          ignore.origin.text,
          count == 1 ? "it" : "them",
          count == 1 ? "it" : "them"));
}

/// Clips, or only measures the norm, as DeepSpeed's optimizers with ZeRO, fp16 or bf16 do.
void EngineUpdate::clip_gradients() {
  const ds_config::DsConfig& config = context_.config;
  const bool clips = config.gradient_clipping.value > 0;
  const bool measures =
      config.zero.compute_grad_norm.value &&
      (context_.stage() > 0 || config.fp16.enabled.value || config.bf16.enabled.value);
  if (!clips && !measures) {
    return;
  }
  // As in DeepSpeed, the norm is over the optimizer's parameters; with ZeRO these are the model's.
  norm_ = context_.accelerator->clip_grad_norm_(
      context_.optimizer.is_sharded() ? context_.parameters() : context_.optimizer.parameters(),
      clips ? config.gradient_clipping.value : std::numeric_limits<double>::infinity());
  // The program may have changed gradients since backward, which examines them as they arrive.
  internal::AcceleratorInternals::finite_guard(*context_.accelerator)
      .check_gradient(norm_, "a parameter, as step() uses it,");
}

void EngineUpdate::drop_gradients() {
  context_.optimizer.zero_grad();
  if (!context_.optimizer.is_sharded()) {
    // The optimizer may have only some of the model's parameters.
    for (const at::Tensor& parameter : context_.parameters()) {
      parameter.mutable_grad().reset();
    }
  }
}

}  // namespace lockstep
