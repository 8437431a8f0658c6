// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/step/training_step.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/accelerator/step/optimizer.h"
#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

std::vector<const void*> addresses(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> all;
  for (const at::Tensor& tensor : tensors) {
    all.push_back(tensor.unsafeGetTensorImpl());
  }
  return all;
}

}  // namespace

TrainingStep::TrainingStep(const AcceleratorOptions& options, bool scaled, const Group& group)
    : group_(group), accumulation_(*options.gradient_accumulation_plugin) {
  if (scaled) {
    scaling_ = LossScaling(options.grad_scaler, options.loss_scale_rule, group);
  }
}

void TrainingStep::add_observer(const std::shared_ptr<TrainingStepObserver>& observer) {
  observers_.push_back(observer.get());
  staying_.push_back(observer);
}

void TrainingStep::remove_observers() {
  observers_.clear();
  for (const auto& observer : staying_) {
    observers_.push_back(observer.get());
  }
}

// --- accumulation

void TrainingStep::set_accumulation_steps(int64_t steps) {
  if (steps < 1) {
    throw ConfigError(
        "gradient_accumulation_steps",
        fmt::format("got {} micro-steps; expected at least 1", steps));
  }
  if (!position_.sync_gradients || position_.in_micro_step) {
    throw ConfigError(
        "gradient_accumulation_steps",
        "it was set within an accumulation group, whose losses are divided by the old number; set "
        "it after the last micro-step of a group");
  }
  accumulation_.num_steps = steps;
}

double TrainingStep::begin_micro_step(bool at_end) {
  if (position_.in_micro_step) {
    throw ConfigError(
        "accumulate",
        "accumulate() was called inside another accumulate(); pass all models of the micro-step to "
        "one call");
  }
  notify(&TrainingStepObserver::before_micro_step);
  scaling_.update_if_due();
  if (position_.sync_gradients) {
    position_.in_group = 0;
  }
  ++position_.in_group;
  position_.step = at_end ? 0 : position_.step + 1;
  position_.sync_gradients = at_end || position_.step % accumulation_.num_steps == 0;
  position_.in_micro_step = true;
  position_.counts_in_micro_step = 0;
  notify(&TrainingStepObserver::micro_step_began);
  const bool corrects = accumulation_.rescale_short_group && position_.sync_gradients &&
                        !position_.counted && position_.in_group > 1;
  return corrects ? static_cast<double>(accumulation_.num_steps) /
                        static_cast<double>(position_.in_group)
                  : 1;
}

void TrainingStep::end_no_sync() {
  position_.no_sync_depth = std::max(0, position_.no_sync_depth - 1);
  position_.sync_triggered = false;
}

void TrainingStep::trigger_sync() {
  if (position_.no_sync_depth == 0) {
    throw ConfigError(
        "trigger_sync_in_backward",
        "trigger_sync_in_backward() was called outside no_sync(), where every backward averages; "
        "remove the call");
  }
  position_.sync_triggered = true;
}

// --- backward

double TrainingStep::loss_factor() const {
  if (position_.counted) {
    throw ConfigError(
        "backward",
        "this accumulation group has a backward(loss_sum, count) already; give every loss of the "
        "group a count, or none");
  }
  // Outside accumulate() it is not known which backward is the last of a group, so the division is
  // always the same there.
  const bool ends_group = position_.in_micro_step && position_.sync_gradients;
  const int64_t parts = ends_group && accumulation_.rescale_short_group ? position_.in_group
                                                                        : accumulation_.num_steps;
  return 1.0 / static_cast<double>(parts);
}

bool TrainingStep::add_count(double count) {
  if (!(count >= 0)) {
    throw ConfigError("backward", fmt::format("a count must be 0 or more; got {}", count));
  }
  if (is_joining_) {
    throw ConfigError(
        "backward",
        "backward(loss_sum, count) cannot be combined with join_uneven_inputs: a process without "
        "data has no count to add; divide each loss yourself and use backward(loss)");
  }
  const bool grouped = position_.in_micro_step && accumulation_.num_steps > 1;
  if (grouped && ++position_.counts_in_micro_step > 1) {
    throw ConfigError(
        "backward",
        "a second backward(loss_sum, count) was called in one micro-step; add the sums and the "
        "counts, or divide each loss yourself and use backward(loss)");
  }
  const bool is_first = !position_.counted;
  position_.counted = position_.counted.value_or(0) + count;
  return is_first;
}

double TrainingStep::take_count() {
  return std::exchange(position_.counted, std::nullopt).value_or(0);
}

void TrainingStep::give_loss(const GivenLoss& given) {
  notify(&TrainingStepObserver::loss_given, given);
  if (!position_.in_micro_step) {
    scaling_.update_if_due();
  }
  count_backward();
}

at::Tensor TrainingStep::scale(const at::Tensor& loss) {
  GradScaler* const scaler = scaling_.scaler();
  return scaler != nullptr ? scaler->scale(loss) : loss;
}

void TrainingStep::count_backward() {
  notify(&TrainingStepObserver::backward_began);
  ++backward_passes_;
  clipped_.clear();
}

// --- clipping

const at::Tensor* TrainingStep::clipped_norm(
    const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) const {
  if (clipped_.empty()) {
    return nullptr;
  }
  const std::vector<const void*> same = addresses(parameters);
  for (const Clipped& done : clipped_) {
    if (done.max_norm == max_norm && done.norm_type == norm_type && done.parameters == same) {
      return &done.norm;
    }
  }
  return nullptr;
}

void TrainingStep::note_clipped(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type,
    const at::Tensor& norm) {
  clipped_.push_back({max_norm, norm_type, addresses(parameters), norm});
}

// --- updates

void TrainingStep::begin_update(const Optimizer& optimizer) {
  refuse_offloaded("optimizer");
  notify(&TrainingStepObserver::before_update, optimizer);
}

bool TrainingStep::run_update(const Optimizer& optimizer, const std::function<void()>& update) {
  clipped_.clear();
  const bool may_update =
      std::all_of(observers_.begin(), observers_.end(), [&](TrainingStepObserver* observer) {
        return observer->may_update(optimizer.steps());
      });
  GradScaler* const scaler = scaling_.scaler();
  if (scaler == nullptr) {
    if (may_update) {
      update();
    }
    return may_update;
  }
  if (!may_update) {
    // The scaler must register these gradients, although the update is skipped.
    scaler->unscale_(&optimizer.inner(), optimizer.parameters());
    return false;
  }
  const bool was_updated = scaler->step(&optimizer.inner(), optimizer.parameters(), update);
  if (!was_updated && scaler->get_scale() <= 1) {
    // Overflows are normal until a scale is found; without a scale the model causes them.
    notify(&TrainingStepObserver::overflowed_unscaled, optimizer);
  }
  return was_updated;
}

void TrainingStep::end_update(const Update& update) {
  scaling_.mark_due();
  ++updates_;
  ++calls_.steps;
  notify(&TrainingStepObserver::after_update, update);
}

at::Tensor TrainingStep::mean_over_ranks(const at::Tensor& value) {
  if (group_.size() == 1 || !value.defined()) {
    return value;
  }
  return group_
      .all_reduce(
          value.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true), ReduceOp::kAvg)
      .wait()
      .to(value.scalar_type());
}

// --- states that exclude others

void TrainingStep::set_joining(bool is_joining) {
  is_joining_ = is_joining;
  if (GradScaler* const scaler = scaling_.scaler()) {
    // Averaged gradients overflow on all processes or on none, and processes without data cannot
    // agree on it.
    scaler->set_group(is_joining ? Group() : group_);
  }
}

void TrainingStep::refuse_offloaded(const char* where) const {
  if (is_offloaded_) {
    throw ConfigError(
        where, "states are in host memory since offload_states(); call reload_states() first");
  }
}

// --- prepared objects and checkpoints

void TrainingStep::load_position(const AccumulationPosition& saved) {
  position_.step = saved.step;
  position_.in_group = saved.in_group;
  position_.sync_gradients = saved.sync_gradients;
  position_.counted = saved.counted;
}

void TrainingStep::reset_accumulation() {
  position_.sync_gradients = true;
  position_.step = 0;
  position_.in_group = 0;
  position_.counted.reset();
  clipped_.clear();
  calls_ = {};
}

void TrainingStep::forget_objects() {
  notify(&TrainingStepObserver::objects_forgotten);
  reset_accumulation();
  any_not_averaged_ = false;
  scaling_.forget_optimizers();
}

}  // namespace lockstep::internal
