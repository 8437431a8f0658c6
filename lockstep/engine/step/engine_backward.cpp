// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/step/engine_backward.h"

#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>

#include "lockstep/accelerator/backward/backward_runner.h"
#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/base/error.h"

namespace lockstep {

// --- callbacks of the Accelerator

/// Callbacks may outlive the engine in a loss's graph and in the program's optimizer.
void EngineBackward::register_callbacks() {
  internal::AcceleratorInternals::backward_runner(*context_.accelerator)
      .watch_unscaled_backward([weak = weak_from_this()] {
        if (const auto self = weak.lock()) {
          self->check_unscaled_backward();
        }
      });
  internal::AcceleratorInternals::step(*context_.accelerator)
      .set_ends_update([weak = weak_from_this()] {
        const auto self = weak.lock();
        return self && self->context_.counter.is_boundary();
      });
}

at::Tensor EngineBackward::scale(const at::Tensor& loss) {
  const at::Tensor part = part_of_update("scale", loss, /*scale_wrt_gas=*/true);
  const auto callback = [weak = weak_from_this()](const auto& call) {
    return [weak, call] {
      if (const auto self = weak.lock()) {
        call(*self);
      }
    };
  };
  internal::BackwardCallbacks callbacks{
      .begins = callback([update = context_.counter.counts().global_steps](EngineBackward& self) {
        self.begin_program_backward(update);
      }),
      .computed = nullptr,
      .ends = callback([](EngineBackward& self) { self.end_program_backward(); })};
  if (meter_.measures_gradient_averaging()) {
    callbacks.computed =
        callback([](EngineBackward& self) { self.meter_.mark_gradients_computed(); });
  }
  at::Tensor scaled = internal::AcceleratorInternals::backward_runner(*context_.accelerator)
                          .scale_loss(scaled_for_reduction(part), std::move(callbacks));
  meter_.add_loss(part.detach());
  return scaled;
}

// --- backward passes of the engine

/// Stages 2 and 3 average in each backward, so that no rank keeps full gradients for long.
bool EngineBackward::defers_averaging() const {
  return within_no_sync_ || (context_.stage() < 2 && !context_.counter.is_boundary());
}

/// Returns the loss divided by the micro-steps in an update. Monitors add up these parts.
at::Tensor EngineBackward::part_of_update(
    const char* where, const at::Tensor& loss, bool scale_wrt_gas) {
  if (!context_.has_optimizer()) {
    throw ConfigError(
        where,
        "the engine has no optimizer; add one to the configuration, or pass one to "
        "initialize");
  }
  if (!loss.defined() || loss.numel() != 1) {
    throw ConfigError(
        where,
        fmt::format(
            "needs a loss of one number; got {}",
            loss.defined() ? fmt::format("{}", loss.numel()) : "none"));
  }
  drop_unfinished_backward();
  const int64_t losses = context_.counter.losses_in_update();
  return scale_wrt_gas && losses > 1 ? at::div(loss, static_cast<double>(losses)) : loss;
}

/// Multiplies by the ranks if gradients are summed: the reduction divides by those that average.
at::Tensor EngineBackward::scaled_for_reduction(const at::Tensor& part) const {
  return context_.config.gradient_allreduce_op.value == ds_config::AllreduceOp::kSum
             ? at::mul(part, static_cast<double>(context_.accelerator->mesh().replicas.size()))
             : part;
}

at::Tensor EngineBackward::backward(const at::Tensor& loss, const EngineBackwardOptions& options) {
  meter_.log_memory("before backward");
  const at::Tensor part = part_of_update("backward", loss, options.scale_wrt_gas);
  meter_.begin_backward();
  BackwardOptions backward_options{.retain_graph = options.retain_graph, .computed = nullptr};
  if (meter_.measures_gradient_averaging()) {
    backward_options.computed = [this] { meter_.mark_gradients_computed(); };
  }
  const bool deferred = defers_averaging();
  {
    std::optional<GradientScope> scope;
    if (deferred) {
      scope.emplace(context_.accelerator->no_sync());
    }
    context_.accelerator->backward(scaled_for_reduction(part), backward_options);
  }
  gradients_are_averaged_ = !deferred;
  context_.counter.end_backward();
  at::Tensor result = part.detach();
  meter_.add_loss(result);
  meter_.end_backward();
  return result;
}

GradientScope EngineBackward::no_sync() {
  if (context_.stage() >= 2) {
    throw ConfigError(
        "no_sync",
        fmt::format(
            "works in stages 0 and 1; got stage {}, which reduces and shards gradients in every "
            "backward, so that waiting saves nothing",
            context_.stage()));
  }
  if (within_no_sync_) {
    throw ConfigError("no_sync", "another scope is active; leave it first");
  }
  within_no_sync_ = true;
  return GradientScope([weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->within_no_sync_ = false;
    }
  });
}

CollectiveScope EngineBackward::begin_coalescing() {
  const char* const name = "coalesce_grad_reduction";
  if (!context_.config.managed_gradient_accumulation.value) {
    throw ConfigError(
        name,
        "does not work with managed_gradient_accumulation false, where every step() is an update; "
        "delete that key, or use backward alone");
  }
  if (context_.stage() == 0) {
    throw ConfigError(name, "works in stages 1 to 3; got stage 0; use no_sync()");
  }
  if (within_no_sync_) {
    throw ConfigError(
        name,
        within_coalescing_ ? "another call is active; end it first"
                           : "a no_sync() scope is active; leave it first");
  }
  if (!context_.has_optimizer()) {
    throw ConfigError(name, "the engine has no optimizer; add one to the configuration");
  }
  within_no_sync_ = within_coalescing_ = true;
  const std::shared_ptr<EngineBackward> self = shared_from_this();
  return {std::make_shared<GradientScope>([self] { self->end_coalescing(); }), [self] {
            self->end_coalescing();
            const MicroStepMeter::Time began = self->meter_.now();
            self->context_.accelerator->average_gradients();
            self->gradients_are_averaged_ = true;
            self->meter_.add_gradient_averaging(began);
          }};
}

void EngineBackward::check_before_step() {
  if (within_no_sync_) {
    throw ConfigError(
        "step",
        within_coalescing_
            ? "called within coalesce_grad_reduction(), which averages gradients at its end; call "
              "step after it"
            : "called within no_sync(), whose gradients are not averaged; leave it first");
  }
  if (std::exchange(program_backward_is_running_, false)) {
    drop_unfinished_backward();
    throw ConfigError(
        "step",
        "the backward of a loss from scale() has thrown, and its gradients are invalid; drop them "
        "(optimizer.zero_grad()) before the next backward");
  }
}

void EngineBackward::average_pending_gradients() {
  // Pending: backward passes within no_sync(), or before the program moved the boundary.
  if (!gradients_are_averaged_) {
    context_.accelerator->average_gradients();
    gradients_are_averaged_ = true;
  }
}

// --- backward passes that the program calls

void EngineBackward::begin_program_backward(int64_t update) {
  if (update != context_.counter.counts().global_steps) {
    throw ConfigError(
        "backward",
        "got a loss that was scaled before the last update, which may have changed the loss "
        "scale; call engine.scale(loss) again");
  }
  drop_unfinished_backward();
  meter_.log_memory("before backward");
  meter_.begin_backward();
  if (defers_averaging()) {
    program_backward_no_sync_.emplace(context_.accelerator->no_sync());
  }
  program_backward_is_running_ = true;
}

void EngineBackward::end_program_backward() {
  gradients_are_averaged_ = !program_backward_no_sync_;
  program_backward_no_sync_.reset();
  program_backward_is_running_ = false;
  context_.counter.end_backward();
  meter_.end_backward();
}

void EngineBackward::drop_unfinished_backward() {
  program_backward_no_sync_.reset();
  program_backward_is_running_ = false;
}

/// Throws unless the gradients of a loss without backward() or scale() are right all the same.
void EngineBackward::check_unscaled_backward() {
  const auto refuse = [](const std::string& because) {
    throw ConfigError(
        "backward",
        fmt::format(
            "loss.backward() was called directly, {}; call engine.backward(loss), or "
            "engine.scale(loss).backward(). If the loss belongs to another model, freeze this one "
            "meanwhile (requires_grad_(false)); if another engine has this model, destroy() the "
            "first engine",
            because));
  };
  const int64_t losses = context_.counter.losses_in_update();
  if (losses > 1) {
    refuse(fmt::format("so gradients are not divided by the {} micro-steps of an update", losses));
  }
  if (context_.config.precision.value == FloatDtype::kFloat16) {
    refuse("so gradients do not carry the loss scale of fp16");
  }
  if (context_.config.gradient_allreduce_op.value == ds_config::AllreduceOp::kSum) {
    refuse("so gradients are averaged, while gradient_allreduce_op is sum");
  }
  const ds_config::Bf16Section& bf16 = context_.config.bf16;
  if (bf16.enabled.value && bf16.check_grad_overflow.value) {
    refuse("so the loss is not checked for infinities, while bf16.check_grad_overflow is on");
  }
  if (defers_averaging()) {
    refuse("so gradients are averaged too early: before the boundary, or within no_sync()");
  }
  gradients_are_averaged_ = true;
  context_.counter.end_backward();
}

}  // namespace lockstep
