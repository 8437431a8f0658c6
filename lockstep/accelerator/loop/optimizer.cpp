// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/optimizer.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <torch/optim/optimizer.h>

#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/accelerator/loop/step_recorder.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/call_scope.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/parameters_once.h"
#include "lockstep/optim/update/speculative_updates.h"
#include "lockstep/watch/flight_recorder.h"
#include "lockstep/zero/sharding.h"

namespace lockstep {

namespace {

/// Marks calls of the inner optimizer as the prepared one's.
class UpdateScope {
 public:
  explicit UpdateScope(bool& updating) : updating_(updating) { updating_ = true; }
  UpdateScope(const UpdateScope&) = delete;
  UpdateScope& operator=(const UpdateScope&) = delete;
  ~UpdateScope() { updating_ = false; }

 private:
  bool& updating_;
};

}  // namespace

struct Optimizer::State {
  std::shared_ptr<torch::optim::Optimizer> inner;
  std::shared_ptr<LoopState> loop;
  int64_t steps = 0;
  bool skipped = false;
  /// LoopState::backward_passes at the last step or zero_grad.
  int64_t backward_passes_at_use = 0;
  std::shared_ptr<zero::Sharding> sharding = nullptr;
  bool is_flat = false;                ///< One of lockstep::optim.
  size_t parameter_count = 0;          ///< Of `inner`, when each was last listed once.
  bool updating = false;               ///< A call of `inner` comes from here.
  bool had_gradients = false;          ///< At any step.
  bool agreed = false;                 ///< See LoopState::agree_on_unprepared.
  int64_t steps_without_gradient = 0;  ///< Steps without any gradient, before the first with one.

  at::Tensor update(const std::function<at::Tensor()>& closure = nullptr) {
    list_parameters_once();
    const UpdateScope scope(updating);
    if (!sharding) {
      return inner->step(closure);
    }
    sharding->check_not_moved();
    sharding->finish_parameter_use();
    const auto loss_and_reshard = [&] {
      at::Tensor loss = closure();
      sharding->finish_parameter_use();  // Its unsharded values will be out of date.
      return loss;
    };
    at::Tensor loss = closure ? inner->step(loss_and_reshard) : inner->step();
    sharding->gather_parameters();
    return loss;
  }
  void list_parameters_once();
  void refuse_direct_call(std::string_view call) const;
  void expect_gradients();
  std::vector<at::Tensor> trained_parameters() const;
  void expect_agreement();
  void check_objects() const {
    if (loop->before_update) {
      loop->before_update();
    }
  }
  /// Reports an update, or a skipped one, to the recorder, if there is one.
  void note_update() const;
  /// Marks the gradients as used, also if the update was skipped.
  void mark_used() const {
    if (sharding) {
      sharding->mark_gradients_used();
    }
  }
};

Optimizer::Optimizer(
    std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<LoopState> loop)
    : state_(std::make_shared<State>(State{std::move(inner), std::move(loop)})) {
  State& state = *state_;
  ++state.loop->optimizers;
  auto* flat = dynamic_cast<optim::FlatOptimizer*>(state.inner.get());
  state.is_flat = flat != nullptr;
  state.list_parameters_once();
  if (flat != nullptr) {
    flat->set_call_guard([weak = std::weak_ptr<State>(state_)](const char* call) {
      if (const auto prepared = weak.lock()) {
        prepared->refuse_direct_call(call);
      }
    });
  }
}

/// Lists each parameter of a torch::optim optimizer once, also those that are added later;
/// lockstep::optim's do it themselves.
void Optimizer::State::list_parameters_once() {
  if (is_flat) {
    return;
  }
  const auto count = [&] {
    size_t all = 0;
    for (const auto& group : inner->param_groups()) {
      all += group.params().size();
    }
    return all;
  };
  if (count() != parameter_count) {
    optim::list_parameters_once(*inner);
    parameter_count = count();
  }
}

/// Throws ConfigError for a call that the program made on the optimizer which it passed to prepare.
void Optimizer::State::refuse_direct_call(std::string_view call) const {
  // Dropping gradients that are averaged, and not sharded, is the same either way.
  if (updating || (call == "zero_grad()" && loop->accumulation.sync_gradients && !sharding)) {
    return;
  }
  throw ConfigError(
      "optimizer",
      fmt::format(
          "{0} was called on the optimizer that was passed to prepare; accumulation, ZeRO, loss "
          "scaling, schedules and checkpoints need calls of the prepared one; use the optimizer "
          "that prepare returned: auto [model, optimizer] = accelerator.prepare(net, opt), then "
          "optimizer.{0}",
          call));
}

/// Throws ConfigError for an optimizer of other parameters than those with gradients. Local; the
/// same on all ranks after a backward that averages.
void Optimizer::State::expect_gradients() {
  constexpr int64_t kManySteps = 100;
  if (sharding) {
    sharding->apply_drops();
  }
  if (had_gradients || !loop->gradients_expected) {
    return;
  }
  const std::vector<at::Tensor> trained = trained_parameters();
  const bool has_gradients =
      sharding ? sharding->has_gradients()
               : std::any_of(trained.begin(), trained.end(), [](const at::Tensor& parameter) {
                   return parameter.grad().defined();
                 });
  if (has_gradients) {
    had_gradients = loop->gradients_used = true;
    return;
  }
  if (trained.empty()) {
    return;
  }
  ++steps_without_gradient;
  if (loop->gradients_used) {
    if (steps_without_gradient == kManySteps) {
      log_warning(fmt::format(
          "an optimizer of {} parameters has found no gradient in its first {} steps, while other "
          "optimizers have; check that it was constructed with the parameters of a trained model",
          trained.size(),
          kManySteps));
    }
    return;
  }
  // The gradients may be those of another optimizer, whose step comes after this one.
  if (steps_without_gradient > 1 || loop->optimizers == 1) {
    throw ConfigError(
        "optimizer",
        fmt::format(
            "step() has nothing to do: none of this optimizer's {} parameters has a gradient after "
            "backward; make the optimizer from the parameters of the model whose loss is passed to "
            "backward, and call zero_grad() after step() or before backward, not between them",
            trained.size()));
  }
}

/// Returns the optimizer's parameters that require gradients, full ones also under ZeRO.
std::vector<at::Tensor> Optimizer::State::trained_parameters() const {
  std::vector<at::Tensor> trained;
  if (sharding) {
    trained = sharding->parameters();
  } else {
    for (const auto& group : inner->param_groups()) {
      trained.insert(trained.end(), group.params().begin(), group.params().end());
    }
  }
  std::erase_if(trained, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  return trained;
}

/// Throws ConfigError if parameters that no prepared model has differ between ranks. Collective
/// until their first gradients.
void Optimizer::State::expect_agreement() {
  if (!agreed && !sharding && loop->agree_on_unprepared) {
    std::vector<at::Tensor> all;
    for (const auto& group : inner->param_groups()) {
      all.insert(all.end(), group.params().begin(), group.params().end());
    }
    agreed = loop->agree_on_unprepared(all);
  }
}

void Optimizer::State::note_update() const {
  if (loop->recorder) {
    const auto& groups = inner->param_groups();
    loop->recorder->note_update(
        inner.get(), steps, skipped, groups.empty() ? 0 : groups.front().options().get_lr());
  }
}

void Optimizer::step() {
  const comm::CallScope call("step");
  if (!state_->loop->accumulation.sync_gradients) {
    return;
  }
  const StepPartScope scope(state_->loop->recorder, tracking::StepPart::kOptimizer);
  perform_step();
  state_->note_update();
}

void Optimizer::perform_step() {
  State& state = *state_;
  LoopState& loop = *state.loop;
  loop.refuse_offloaded("optimizer");
  state.check_objects();
  state.expect_agreement();
  state.expect_gradients();
  loop.clipped.clear();
  state.backward_passes_at_use = loop.backward_passes;
  state.skipped = !loop.finite->may_step(state.steps);
  if (loop.scaling.scaler && state.skipped) {
    // The scaler must register these gradients, although the update is skipped.
    loop.scaling.scaler->unscale_(state.inner.get(), parameters());
  } else if (loop.scaling.scaler) {
    state.skipped =
        !loop.scaling.scaler->step(state.inner.get(), parameters(), [&] { state.update(); });
    if (state.skipped && loop.finite->policy() != NonFinitePolicy::kIgnore &&
        loop.scaling.scaler->get_scale() <= 1) {
      // Overflows are normal until a scale is found; without a scale the model causes them.
      loop.finite->overflowed_unscaled(parameters(), state.steps);
    }
  } else if (!state.skipped) {
    state.update();
  }
  loop.scaling.update_due = true;
  ++loop.prepared_steps;
  ++loop.calls.steps;
  state.mark_used();
  if (!state.skipped) {
    ++state.steps;
    watch::FlightRecorder::process().set_step(state.steps);
  }
}

at::Tensor Optimizer::step(const std::function<at::Tensor()>& closure) {
  const comm::CallScope call("step");
  State& state = *state_;
  if (state.loop->scaling.scaler) {
    throw ConfigError(
        "optimizer",
        "step(closure) cannot be combined with fp16: the closure's gradients would not be "
        "unscaled; use bf16, or step()");
  }
  if (state.loop->finite->policy() != NonFinitePolicy::kIgnore) {
    throw ConfigError(
        "optimizer",
        "step(closure) cannot be combined with a NonFinitePolicy: the closure computes gradients "
        "after the check; use step()");
  }
  if (!state.loop->accumulation.sync_gradients) {
    return {};
  }
  const StepPartScope scope(state.loop->recorder, tracking::StepPart::kOptimizer);
  state.loop->refuse_offloaded("optimizer");
  state.check_objects();
  state.loop->clipped.clear();
  state.skipped = false;
  at::Tensor loss = state.update([&] { return state.loop->mean_over_ranks(closure()); });
  state.expect_agreement();
  state.expect_gradients();
  ++state.loop->prepared_steps;
  ++state.loop->calls.steps;
  state.backward_passes_at_use = state.loop->backward_passes;
  state.mark_used();
  ++state.steps;
  watch::FlightRecorder::process().set_step(state.steps);
  state.note_update();
  return loss;
}

void Optimizer::zero_grad() {
  if (!state_->loop->accumulation.sync_gradients) {
    return;
  }
  state_->loop->clipped.clear();
  state_->backward_passes_at_use = state_->loop->backward_passes;
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
  return state_->backward_passes_at_use < state_->loop->backward_passes;
}

void Optimizer::set_gradients_due(bool due) {
  state_->backward_passes_at_use = due ? -1 : state_->loop->backward_passes;
}

void Optimizer::set_sharding(std::shared_ptr<zero::Sharding> sharding) {
  state_->sharding = std::move(sharding);
  auto* flat = dynamic_cast<optim::FlatOptimizer*>(state_->inner.get());
  if (flat == nullptr || flat->speculative() == nullptr || state_->sharding == nullptr) {
    return;
  }
  // The sharding may outlive the optimizer.
  const std::weak_ptr<optim::SpeculativeUpdates> speculative = flat->speculative();
  state_->sharding->set_speculative_updates(
      {.due =
           [speculative, loop = state_->loop] {
             // A scaler must unscale the gradients first.
             return loop->accumulation.is_last_of_update() && !speculative.expired() &&
                    !loop->scaling.scaler;
           },
       .begin =
           [speculative](size_t group, size_t shard, const at::Tensor& gradient) {
             if (const auto updates = speculative.lock()) {
               updates->begin(group, shard, gradient);
             }
           },
       .discard =
           [speculative](size_t group, size_t shard) {
             if (const auto updates = speculative.lock()) {
               updates->discard(group, shard);
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
