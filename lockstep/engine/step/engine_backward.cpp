// SPDX-License-Identifier: Apache-2.0
// From a loss to gradients that are averaged, or wait to be.
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/engine_core.h"

namespace lockstep {

bool EngineCore::is_gradient_accumulation_boundary() const {
  if (boundary_) {
    return *boundary_;
  }
  return !config_.managed_gradient_accumulation.value ||
         (micro_steps_ + 1) % gradient_accumulation_steps_ == 0;
}

/// Stages 2 and 3 divide gradients after each backward, so that none is whole for long.
bool EngineCore::waits() const {
  return within_no_sync_ || (stage() < 2 && !is_gradient_accumulation_boundary());
}

GradientScope EngineCore::no_sync() {
  accelerator();  // ConfigError if there is none any more.
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
  return GradientScope([self = shared_from_this()] { self->within_no_sync_ = false; });
}

/// The loss divided by the micro-steps of an update, which is also what monitors add up.
at::Tensor EngineCore::divided(const char* where, const at::Tensor& loss, bool scale_wrt_gas) {
  if (!has_optimizer_) {
    throw ConfigError(
        where, "there is no optimizer; add one to the configuration, or give initialize one");
  }
  if (!loss.defined() || loss.numel() != 1) {
    throw ConfigError(
        where,
        fmt::format(
            "needs a loss of one number; got {}",
            loss.defined() ? fmt::format("{}", loss.numel()) : "none"));
  }
  forget_unended();
  return scale_wrt_gas && gradient_accumulation_steps_ > 1
             ? at::div(loss, static_cast<double>(gradient_accumulation_steps_))
             : loss;
}

/// A mean over the ranks is made of it later, of which a sum is so many times as much.
at::Tensor EngineCore::rooted(const at::Tensor& part) const {
  return config_.gradient_allreduce_op.value == ds_config::AllreduceOp::kSum
             ? at::mul(part, static_cast<double>(accelerator().num_processes()))
             : part;
}

void EngineCore::add_to_mean(const at::Tensor& part) {
  if (report_->wants_loss()) {
    const c10::AutoGradMode no_grad(false);
    loss_sum_ = loss_sum_.defined() ? at::add(loss_sum_, part) : part;
  }
}

at::Tensor EngineCore::backward(const at::Tensor& loss, const EngineBackwardOptions& options) {
  tell_memory("before backward");
  const at::Tensor part = divided("backward", loss, options.scale_wrt_gas);
  const auto began = now();
  computed_at_ = began;
  BackwardOptions ours{.retain_graph = options.retain_graph, .computed = nullptr};
  if (report_->wants_times()) {
    ours.computed = [this] { computed_at_ = computed_now(); };
  }
  const bool held = waits();
  if (held) {
    const GradientScope scope = accelerator().no_sync();
    accelerator().backward(rooted(part), ours);
  } else {
    accelerator().backward(rooted(part), ours);
  }
  averaged_ = !held;
  at::Tensor result = part.detach();
  add_to_mean(result);
  end_of_backward(began);
  return result;
}

void EngineCore::end_of_backward(StepTimers::Clock::time_point began) {
  const auto ended = now();
  const double ms = StepTimers::add(micro_timers_.backward_ms, began, ended);
  if (report_->wants_times()) {
    StepTimers::add(micro_timers_.backward_inner_ms, began, computed_at_);
    StepTimers::add(micro_timers_.backward_allreduce_ms, computed_at_, ended);
  }
  if (is_profiled()) {
    profile_.backward_ms += ms;
  }
  tell_memory("after backward");
}

/// Collectives that run on a stream of their own may go on.
StepTimers::Clock::time_point EngineCore::computed_now() const {
  const at::Device device = accelerator().device();
  if (!device.is_cpu()) {
    at::accelerator::getCurrentStream(device.index()).synchronize();
  }
  return StepTimers::Clock::now();
}

// --- where the program calls .backward() itself

at::Tensor EngineCore::scale(const at::Tensor& loss) {
  const at::Tensor part = divided("scale", loss, /*scale_wrt_gas=*/true);
  BackwardSteps steps{
      .begins =
          [core = weak_from_this(), update = global_steps_] {
            if (const auto self = core.lock()) {
              self->begin_scaled(update);
            }
          },
      .computed = nullptr,
      .ends =
          [core = weak_from_this()] {
            if (const auto self = core.lock()) {
              self->end_scaled();
            }
          }};
  if (report_->wants_times()) {
    steps.computed = [core = weak_from_this()] {
      if (const auto self = core.lock()) {
        self->computed_at_ = self->computed_now();
      }
    };
  }
  at::Tensor scaled = accelerator().scale_loss(rooted(part), std::move(steps));
  add_to_mean(part.detach());
  return scaled;
}

void EngineCore::begin_scaled(int64_t update) {
  if (update != global_steps_) {
    throw ConfigError(
        "backward",
        "got a loss that was scaled before the last update, since when the loss scale may be "
        "another; call engine.scale(loss) again");
  }
  forget_unended();
  tell_memory("before backward");
  scaled_began_ = computed_at_ = now();
  if (waits()) {
    held_.emplace(accelerator().no_sync());
  }
  scaled_under_way_ = true;
}

void EngineCore::end_scaled() {
  averaged_ = !held_;
  held_.reset();
  scaled_under_way_ = false;
  end_of_backward(scaled_began_);
}

/// What a backward that threw, which the program called, has left.
void EngineCore::forget_unended() {
  held_.reset();
  scaled_under_way_ = false;
}

/// Of a loss that neither backward nor scale has seen.
void EngineCore::judge_unknown_backward() {
  const auto refuse = [](const std::string& because) {
    throw ConfigError(
        "backward",
        fmt::format(
            "of a loss that the engine has not seen, {}; call engine.backward(loss), or "
            "engine.scale(loss).backward(); if it is another model's loss, freeze this one "
            "meanwhile (requires_grad_(false)); if another engine has this model now, destroy() "
            "the first",
            because));
  };
  if (gradient_accumulation_steps_ > 1) {
    refuse(fmt::format(
        "whose gradients are not divided by the {} micro-steps of an update",
        gradient_accumulation_steps_));
  }
  if (config_.precision.value == ds_config::Dtype::kFloat16) {
    refuse("whose gradients do not carry the loss scale of fp16");
  }
  if (config_.gradient_allreduce_op.value == ds_config::AllreduceOp::kSum) {
    refuse("whose gradients are averaged, while gradient_allreduce_op is sum");
  }
  if (config_.bf16.enabled.value && config_.bf16.check_grad_overflow.value) {
    refuse("which is not looked at for infinities, while bf16.check_grad_overflow is on");
  }
  if (waits()) {
    refuse("whose gradients are averaged at once, where those of this backward are to wait");
  }
  averaged_ = true;
}

}  // namespace lockstep
