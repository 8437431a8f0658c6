// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/step/optimizer.h"

#include <cstddef>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <torch/optim/optimizer.h>

#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/call_scope.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/parameters_once.h"
#include "lockstep/optim/update/speculative_updates.h"
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
  std::shared_ptr<internal::TrainingStep> step;
  int64_t steps = 0;
  bool skipped = false;
  /// TrainingStep::backward_passes() at the last step or zero_grad.
  int64_t backward_passes_at_use = 0;
  std::shared_ptr<zero::Sharding> sharding = nullptr;
  bool is_flat = false;        ///< One of lockstep::optim.
  size_t parameter_count = 0;  ///< Of `inner`, when each was last listed once.
  bool updating = false;       ///< A call of `inner` comes from here.

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
};

Optimizer::Optimizer(
    std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<internal::TrainingStep> step)
    : state_(std::make_shared<State>(State{std::move(inner), std::move(step)})) {
  State& state = *state_;
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
  if (updating || (call == "zero_grad()" && step->sync_gradients() && !sharding)) {
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

void Optimizer::step() {
  const comm::CallScope call("step");
  State& state = *state_;
  internal::TrainingStep& step = *state.step;
  if (!step.sync_gradients()) {
    return;
  }
  const internal::LoopPartScope scope(step, tracking::LoopPart::kOptimizer);
  step.begin_update(*this);
  report_complete_gradients();
  state.backward_passes_at_use = step.backward_passes();
  state.skipped = true;  // Also if the next line throws.
  state.skipped = !step.run_update(*this, [&] { state.update(); });
  end_update();
}

at::Tensor Optimizer::step(const std::function<at::Tensor()>& closure) {
  const comm::CallScope call("step");
  State& state = *state_;
  internal::TrainingStep& step = *state.step;
  if (step.scaler() != nullptr) {
    throw ConfigError(
        "optimizer",
        "step(closure) cannot be combined with fp16: the closure's gradients would not be "
        "unscaled; use bf16, or step()");
  }
  step.notify(&internal::TrainingStepObserver::before_closure);
  if (!step.sync_gradients()) {
    return {};
  }
  const internal::LoopPartScope scope(step, tracking::LoopPart::kOptimizer);
  step.begin_update(*this);
  step.gradients_changed();
  state.skipped = false;
  at::Tensor loss = state.update([&] { return step.mean_over_ranks(closure()); });
  report_complete_gradients();
  state.backward_passes_at_use = step.backward_passes();
  end_update();
  return loss;
}

void Optimizer::report_complete_gradients() {
  if (state_->sharding) {
    state_->sharding->apply_drops();
  }
  state_->step->notify(&internal::TrainingStepObserver::gradients_complete, *this);
}

/// Marks the gradients as used, also if the update was skipped.
void Optimizer::end_update() {
  State& state = *state_;
  if (state.sharding) {
    state.sharding->mark_gradients_used();
  }
  state.steps += state.skipped ? 0 : 1;
  state.step->end_update({.optimizer = *this, .step = state.steps, .skipped = state.skipped});
}

void Optimizer::zero_grad() {
  if (!state_->step->sync_gradients()) {
    return;
  }
  state_->step->gradients_changed();
  state_->backward_passes_at_use = state_->step->backward_passes();
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
  return state_->backward_passes_at_use < state_->step->backward_passes();
}

void Optimizer::set_gradients_due(bool due) {
  state_->backward_passes_at_use = due ? -1 : state_->step->backward_passes();
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
           [speculative, step = state_->step] {
             // A scaler must unscale the gradients first.
             return step->is_last_of_update() && !speculative.expired() &&
                    step->scaler() == nullptr;
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
