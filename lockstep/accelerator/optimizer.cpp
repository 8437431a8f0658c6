// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/optimizer.h"

#include <utility>

#include <fmt/format.h>

#include <torch/optim/optimizer.h>

#include "lockstep/accelerator/loop_state.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/watch/flight_recorder.h"
#include "lockstep/zero/sharding.h"

namespace lockstep {

struct Optimizer::State {
  std::shared_ptr<torch::optim::Optimizer> inner;
  std::shared_ptr<LoopState> loop;
  int64_t steps = 0;
  bool skipped = false;
  int64_t used_up = 0;  ///< LoopState::backwards at the last step or zero_grad.
  std::shared_ptr<zero::Sharding> sharding = nullptr;

  at::Tensor update(const std::function<at::Tensor()>& closure = nullptr) const {
    if (!sharding) {
      return inner->step(closure);
    }
    sharding->check_in_place();
    sharding->settle_parameters();
    const auto settling = [&] {
      at::Tensor loss = closure();
      sharding->settle_parameters();  // What it brought will be old.
      return loss;
    };
    at::Tensor loss = closure ? inner->step(settling) : inner->step();
    sharding->gather_parameters();
    return loss;
  }
  /// Gradients have had their turn, also if the update was left out.
  void mark_used() const {
    if (sharding) {
      sharding->mark_gradients_used();
    }
  }
};

namespace {

void refuse_offloaded(const LoopState& loop) {
  if (loop.offloaded) {
    throw ConfigError(
        "optimizer",
        "states lie in the host's memory since offload_states(); call reload_states() first");
  }
}

}  // namespace

Optimizer::Optimizer(
    std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<LoopState> loop)
    : state_(std::make_shared<State>(State{std::move(inner), std::move(loop)})) {}

void Optimizer::step() {
  State& state = *state_;
  LoopState& loop = *state.loop;
  if (!loop.sync_gradients) {
    return;
  }
  refuse_offloaded(loop);
  loop.clipped.clear();
  state.used_up = loop.backwards;
  state.skipped = !loop.finite->may_step(state.steps);
  if (loop.scaler && state.skipped) {
    // The scaler must know that these gradients have had their turn.
    loop.scaler->unscale_(state.inner.get(), parameters());
  } else if (loop.scaler) {
    state.skipped = !loop.scaler->step(state.inner.get(), parameters(), [&] { state.update(); });
    if (state.skipped && loop.finite->policy() != NonFinitePolicy::kIgnore &&
        loop.scaler->get_scale() <= 1) {
      // Overflow is how a scale is found; without any scale it is the model's own.
      loop.finite->overflowed_unscaled(parameters(), state.steps);
    }
  } else if (!state.skipped) {
    state.update();
  }
  loop.scaler_update_due = true;
  state.mark_used();
  if (!state.skipped) {
    ++state.steps;
    watch::FlightRecorder::process().set_step(state.steps);
  }
}

at::Tensor Optimizer::step(const std::function<at::Tensor()>& closure) {
  State& state = *state_;
  if (state.loop->scaler) {
    throw ConfigError(
        "optimizer",
        "step with a closure does not go with fp16: the closure's gradients would not be unscaled; "
        "use bf16, or step()");
  }
  if (state.loop->finite->policy() != NonFinitePolicy::kIgnore) {
    throw ConfigError(
        "optimizer",
        "step with a closure does not go with a NonFinitePolicy: the closure's gradients come "
        "after "
        "it was asked; use step()");
  }
  if (!state.loop->sync_gradients) {
    return {};
  }
  refuse_offloaded(*state.loop);
  state.loop->clipped.clear();
  state.skipped = false;
  at::Tensor loss = state.update(closure);
  state.used_up = state.loop->backwards;
  state.mark_used();
  ++state.steps;
  watch::FlightRecorder::process().set_step(state.steps);
  return loss;
}

void Optimizer::zero_grad() {
  if (!state_->loop->sync_gradients) {
    return;
  }
  state_->loop->clipped.clear();
  state_->used_up = state_->loop->backwards;
  if (state_->sharding) {
    state_->sharding->drop_gradients();
    return;
  }
  for (const at::Tensor& parameter : parameters()) {
    parameter.mutable_grad().reset();
  }
}

bool Optimizer::step_was_skipped() const {
  return state_->skipped;
}

int64_t Optimizer::steps() const {
  return state_->steps;
}

void Optimizer::set_steps(int64_t steps) {
  state_->steps = steps;
}

bool Optimizer::gradients_are_due() const {
  return state_->used_up < state_->loop->backwards;
}

void Optimizer::set_gradients_due(bool due) {
  state_->used_up = due ? -1 : state_->loop->backwards;
}

void Optimizer::set_sharding(std::shared_ptr<zero::Sharding> sharding) {
  state_->sharding = std::move(sharding);
  auto* flat = dynamic_cast<optim::FlatOptimizer*>(state_->inner.get());
  if (flat == nullptr || !flat->may_begin_early()) {
    return;
  }
  // A sharding may live longer than an optimizer of its user's.
  const std::weak_ptr<const void> alive = flat->early_alive();
  state_->sharding->set_early_updates(
      {.due =
           [alive, loop = state_->loop] {
             const bool last = loop->ends_update ? loop->ends_update() : loop->sync_gradients;
             return last && !alive.expired() &&
                    !loop->scaler;  // Which has gradients unscaled first.
           },
       .begin =
           [flat](size_t group, size_t shard, const at::Tensor& gradient) {
             flat->begin_early(group, shard, gradient);
           },
       .forget =
           [flat, alive](size_t group, size_t shard) {
             if (!alive.expired()) {
               flat->forget_early(group, shard);
             }
           }});
}

bool Optimizer::is_sharded() const {
  return state_->sharding != nullptr;
}

zero::Sharding* Optimizer::sharding() const {
  return state_->sharding.get();
}

torch::optim::Optimizer& Optimizer::inner() const {
  return *state_->inner;
}

std::vector<at::Tensor> Optimizer::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& group : state_->inner->param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

std::vector<double> Optimizer::learning_rates() const {
  std::vector<double> rates;
  for (const auto& group : state_->inner->param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return rates;
}

void Optimizer::set_learning_rates(const std::vector<double>& rates) const {
  auto& groups = state_->inner->param_groups();
  if (rates.size() != groups.size()) {
    throw ConfigError(
        "optimizer",
        fmt::format("got {} learning rates for {} parameter groups", rates.size(), groups.size()));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].options().set_lr(rates[i]);
  }
}

}  // namespace lockstep
