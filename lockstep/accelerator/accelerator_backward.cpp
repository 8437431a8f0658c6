// SPDX-License-Identifier: Apache-2.0
// Backwards: those that this runs, those that the program calls itself, and those that nobody told
// it of.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/base/error.h"
#include "lockstep/sync/backward_hooks.h"
#include "lockstep/sync/reducer.h"

namespace lockstep {
namespace {

void require_one_number(const at::Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1) {
    throw ConfigError(
        "backward", "the loss must be one number; take its mean() or sum() before backward");
  }
}

}  // namespace

/// What a loss of the current micro-step is multiplied by.
double Accelerator::part_of_group() const {
  const LoopState& loop = *state_->loop;
  if (loop.counted) {
    throw ConfigError(
        "backward",
        "this accumulation group has a backward(loss_sum, count) already; give every loss of the "
        "group a count, or none");
  }
  // Outside accumulate() nobody knows which backward is the last of a group, so the division is
  // always the same there.
  const bool short_group = loop.in_micro_step && loop.sync_gradients;
  const int64_t parts = short_group ? loop.in_group : loop.accumulation.num_steps;
  return 1.0 / static_cast<double>(parts);
}

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options) {
  require_one_number(loss);
  run_backward(loss, part_of_group(), options);
}

void Accelerator::backward(const at::Tensor& loss_sum, double count) {
  require_one_number(loss_sum);
  LoopState& loop = *state_->loop;
  if (!(count >= 0)) {
    throw ConfigError("backward", fmt::format("a count must be 0 or more; got {}", count));
  }
  if (state_->joining) {
    throw ConfigError(
        "backward",
        "counts do not go with join_uneven_inputs: processes without data have none to add; divide "
        "each loss yourself and use backward(loss)");
  }
  const bool grouped = loop.in_micro_step && loop.accumulation.num_steps > 1;
  if (grouped && ++loop.counts_in_micro_step > 1) {
    throw ConfigError(
        "backward",
        "a second backward(loss_sum, count) in one micro-step: whose count is it? Add the sums "
        "and the counts, or divide each loss yourself and use backward(loss)");
  }
  const bool last = loop.sync_gradients && (loop.no_sync_depth == 0 || loop.sync_triggered);
  const bool alone = !loop.counted;
  loop.counted = loop.counted.value_or(0) + count;
  if (!last) {
    run_backward(loss_sum, 1);
    return;
  }
  double total = *loop.counted;
  loop.counted.reset();
  if (use_distributed()) {
    total = state_->group.all_reduce(at::full({1}, total, at::kDouble)).wait().item<double>();
  }
  if (total <= 0) {
    throw ConfigError(
        "backward", "the counts of all processes and micro-steps add up to 0; skip such a step");
  }
  // Averaging over processes divides by their number, which the total contains already.
  const double factor = num_processes() / total;
  if (!alone) {
    scale_gradients(factor);
  }
  run_backward(loss_sum, factor);
}

at::Tensor Accelerator::scaled_loss(const at::Tensor& loss, double factor) {
  const auto is_away = [&](OffloadStateType type) { return state_->offloaded.contains(type); };
  if (is_away(OffloadStateType::kLpParams) || is_away(OffloadStateType::kHpParams) ||
      is_away(OffloadStateType::kLpGrads)) {
    refuse_offloaded("backward");
  }
  State& state = *state_;
  state.expect_model();
  LoopState& loop = *state.loop;
  drop_unended();
  state.active->mark_trained();
  ++loop.backwards;
  loop.gradients_expected = loop.gradients_expected || loss.requires_grad();
  if (state.optimizers_differ && state.local_sgds.empty()) {
    state.optimizers_differ = false;
    make_optimizers_equal("load_state");
  }
  if (!loop.in_micro_step) {
    state.refuse_unprepared_update();
    loop.update_scaler_if_due();
  }
  loop.clipped.clear();
  loop.finite->look_at_loss(loss);
  if (loop.finite->policy() == NonFinitePolicy::kIgnore) {
    loop.losses.note(loss);
  }
  warn_of_unused_precision();
  const at::Tensor scaled = factor == 1 ? loss : at::mul(loss, factor);
  return loop.scaler ? loop.scaler->scale(scaled) : scaled;
}

void Accelerator::run_backward(
    const at::Tensor& loss, double factor, const BackwardOptions& options) {
  State& state = *state_;
  at::Tensor scaled = scaled_loss(loss, factor);
  const bool looks = state.looks_for_unprepared();
  if (looks) {
    state.unprepared_leaves.look(scaled, state.prepared_parameters());
  }
  if (options.computed && scaled.requires_grad()) {
    if (scaled.is_same(loss)) {
      scaled = at::mul(loss, 1.0);  // The program's own tensor is not to keep the hook.
    }
    scaled.register_hook([computed = options.computed](const at::Tensor&) {
      BackwardHooks::at_end_of_backward(computed);  // Before who averages asks for the same.
    });
  }
  state.runner = State::Runner::kThis;
  try {
    if (state.models.size() == 1) {
      state.models[0].sync->begin_backward();
    }
    // With a single model a loss that depends on no parameter is this rank's zero; the others wait
    // for it.
    if (scaled.requires_grad() || !use_distributed() || state.models.size() != 1) {
      scaled.backward({}, options.retain_graph);
    }
    for (const State::Model& model : state.models) {
      model.sync->finish_backward();
    }
    if (looks) {
      state.unprepared_leaves.compare(state.group);
    }
  } catch (...) {
    abandon_backward();
    throw;
  }
  state.runner = State::Runner::kNobody;
  state.note_for_accumulation_check();
}

void Accelerator::abandon_backward() noexcept {
  for (const State::Model& model : state_->models) {
    model.sync->abandon_backward();
  }
  state_->runner = State::Runner::kNobody;
}

/// Of a backward that the program called nobody here has caught what it threw.
void Accelerator::drop_unended() noexcept {
  if (state_->runner == State::Runner::kProgram) {
    abandon_backward();
  }
}

// --- backwards that the program calls

at::Tensor Accelerator::scale_loss(const at::Tensor& loss, BackwardSteps steps) {
  require_one_number(loss);
  if (!loss.requires_grad()) {
    throw ConfigError(
        "backward",
        "the loss depends on nothing that requires a gradient, so .backward() cannot be called on "
        "it; call backward(loss), which counts it as this process's zero");
  }
  // A tensor of its own, since it keeps the hook.
  const at::Tensor scaled = scaled_loss(at::mul(loss, part_of_group()), 1);
  scaled.register_hook([this,
                        alive = std::weak_ptr<const void>(state_->alive),
                        steps = std::move(steps)](const at::Tensor&) {
    if (alive.expired()) {
      throw ConfigError(
          "backward", "the Accelerator that scaled this loss was destroyed; scale the loss again");
    }
    begin_of_program(steps);
  });
  return scaled;
}

void Accelerator::begin_of_program(const BackwardSteps& steps) {
  State& state = *state_;
  const int backward = BackwardHooks::current_backward();
  if (state.runner == State::Runner::kThis) {
    throw ConfigError(
        "backward",
        "got a loss that is scaled already; call .backward() on it, or pass the loss as it was");
  }
  if (state.runner == State::Runner::kProgram && state.program_backward == backward) {
    return;  // Two scaled losses in one backward.
  }
  drop_unended();
  if (steps.begins) {
    steps.begins();
  }
  state.runner = State::Runner::kProgram;
  state.program_backward = backward;
  for (const State::Model& model : state.models) {
    if (state.models.size() == 1) {
      model.sync->begin_backward();
    }
  }
  BackwardHooks::at_end_of_backward([this, alive = std::weak_ptr<const void>(state.alive), steps] {
    if (!alive.expired()) {
      end_of_program(steps);
    }
  });
}

void Accelerator::end_of_program(const BackwardSteps& steps) {
  State& state = *state_;
  try {
    if (steps.computed) {
      steps.computed();
    }
    for (const State::Model& model : state.models) {
      model.sync->finish_backward();
    }
  } catch (...) {
    abandon_backward();
    if (steps.ends) {
      steps.ends();
    }
    throw;
  }
  state.runner = State::Runner::kNobody;
  state.note_for_accumulation_check();
  if (steps.ends) {
    steps.ends();
  }
}

void Accelerator::watch_unknown_backwards(std::function<void()> judge) {
  std::vector<at::Tensor> watched;
  for (const State::Model& model : state_->models) {
    for (const NamedTensor& item : trainable(model.parameters())) {
      watched.push_back(item.tensor);
    }
  }
  state_->judged_by_others = true;
  state_->unknown = std::make_unique<BackwardHooks>(
      watched, [this, judge = std::move(judge)](size_t) { meet_gradient(judge); });
}

void Accelerator::set_ends_update(std::function<bool()> ends_update) {
  state_->loop->ends_update = std::move(ends_update);
}

void Accelerator::meet_gradient(const std::function<void()>& judge) {
  State& state = *state_;
  const int backward = BackwardHooks::current_backward();
  const bool is_known =
      state.runner == State::Runner::kProgram && state.program_backward == backward;
  if (state.runner == State::Runner::kThis || is_known || state.judged_backward == backward) {
    return;
  }
  drop_unended();
  try {
    judge();
  } catch (...) {
    abandon_backward();  // Which has begun, as far as the models' syncs know.
    throw;
  }
  state.judged_backward = backward;
  state.active->mark_trained();
  ++state.loop->backwards;
  state.loop->clipped.clear();
}

}  // namespace lockstep
