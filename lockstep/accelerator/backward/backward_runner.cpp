// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/backward/backward_runner.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>

#include "lockstep/accelerator/backward/gradient_accumulation.h"
#include "lockstep/accelerator/backward/gradients.h"
#include "lockstep/accelerator/backward/mixed_precision.h"
#include "lockstep/accelerator/backward/unprepared_model_check.h"
#include "lockstep/accelerator/backward/unprepared_update_check.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/accelerator/loop/step_recorder.h"
#include "lockstep/accelerator/offload_states/state_offloader.h"
#include "lockstep/accelerator/prepare/equal_optimizers.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/base/callback.h"
#include "lockstep/base/error.h"
#include "lockstep/sync/unfrozen.h"

namespace lockstep {
namespace {

void require_one_number(const at::Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1) {
    throw ConfigError(
        "backward", "the loss must be one number; take its mean() or sum() before backward");
  }
}

[[noreturn]] void refuse_loss_without_gradient(const char* what) {
  throw ConfigError(
      "backward",
      fmt::format(
          "{} on a tensor that requires a gradient, so nothing would be trained; compute "
          "the loss from the model's output outside of NoGradGuard, and without detach(), item(), "
          "gather_for_metrics or a cast to integers; gather and reduce keep the gradient",
          what));
}

/// Checks a count of backward(loss_sum, count), and counts it in the micro-step.
void note_count(LoopState& loop, double count) {
  if (!(count >= 0)) {
    throw ConfigError("backward", fmt::format("a count must be 0 or more; got {}", count));
  }
  if (loop.joining) {
    throw ConfigError(
        "backward",
        "backward(loss_sum, count) cannot be combined with join_uneven_inputs: a process without "
        "data has no count to add; divide each loss yourself and use backward(loss)");
  }
  AccumulationState& accumulation = loop.accumulation;
  const bool grouped = accumulation.in_micro_step && accumulation.plugin.num_steps > 1;
  if (grouped && ++accumulation.counts_in_micro_step > 1) {
    throw ConfigError(
        "backward",
        "a second backward(loss_sum, count) was called in one micro-step; add the sums and the "
        "counts, or divide each loss yourself and use backward(loss)");
  }
}

}  // namespace

// --- backward passes that this class runs

/// Returns the factor of a loss in the current micro-step.
double BackwardRunner::accumulation_factor() const {
  const AccumulationState& accumulation = parts_.loop.accumulation;
  if (accumulation.counted) {
    throw ConfigError(
        "backward",
        "this accumulation group has a backward(loss_sum, count) already; give every loss of the "
        "group a count, or none");
  }
  // Outside accumulate() it is not known which backward is the last of a group, so the division is
  // always the same there.
  const bool short_group = accumulation.in_micro_step && accumulation.sync_gradients;
  const int64_t parts = short_group ? accumulation.in_group : accumulation.plugin.num_steps;
  return 1.0 / static_cast<double>(parts);
}

void BackwardRunner::note_loss(const at::Tensor& loss, double factor) {
  if (parts_.loop.recorder) {
    parts_.loop.recorder->note_loss(loss, factor);
  }
}

void BackwardRunner::backward(const at::Tensor& loss, const BackwardOptions& options) {
  const StepPartScope scope(parts_.loop.recorder, tracking::StepPart::kBackward);
  require_one_number(loss);
  note_loss(loss);
  run(loss, accumulation_factor(), options);
}

void BackwardRunner::backward(const at::Tensor& loss_sum, double count) {
  const StepPartScope scope(parts_.loop.recorder, tracking::StepPart::kBackward);
  require_one_number(loss_sum);
  note_count(parts_.loop, count);
  if (count > 0) {
    note_loss(loss_sum, 1 / count);
  }
  AccumulationState& accumulation = parts_.loop.accumulation;
  const bool is_first_count = !accumulation.counted;
  accumulation.counted = accumulation.counted.value_or(0) + count;
  if (!accumulation.averages()) {
    run(loss_sum, 1);
    return;
  }
  double total = *accumulation.counted;
  accumulation.counted.reset();
  const RunContext& context = parts_.objects.context;
  if (context.is_distributed()) {
    Group group = context.group;
    total = group.all_reduce(at::full({1}, total, at::kDouble)).wait().item<double>();
  }
  if (total <= 0) {
    throw ConfigError(
        "backward",
        "the counts of all processes and micro-steps add up to 0; expected more than 0; skip a "
        "step without items");
  }
  // Averaging over processes divides by their number, which the total contains already.
  const double factor = context.size() / total;
  if (!is_first_count) {
    parts_.gradients.scale(factor);
  }
  run(loss_sum, factor);
}

at::Tensor BackwardRunner::scaled(const at::Tensor& loss, double factor) {
  parts_.offloader.refuse_backward();
  parts_.model_check.expect_model();
  LoopState& loop = parts_.loop;
  abandon_program_backward();
  parts_.active.mark_trained();
  ++loop.backward_passes;
  loop.gradients_expected = loop.gradients_expected || loss.requires_grad();
  if (parts_.local_sgds.take_different_optimizers()) {
    make_optimizers_equal(parts_.objects, "load_state");
  }
  if (!loop.accumulation.in_micro_step) {
    parts_.update_check.refuse_unprepared_update();
    loop.scaling.update_if_due();
  }
  loop.clipped.clear();
  loop.finite->check_loss(loss);
  if (loop.finite->policy() == NonFinitePolicy::kIgnore) {
    loop.losses.note(loss);
    if (loop.losses.has_report() && !parts_.objects.context.is_distributed()) {
      loop.losses.exchange_reports(parts_.objects.context.group);
    }
  }
  parts_.precision.warn_if_unused();
  const at::Tensor part = factor == 1 ? loss : at::mul(loss, factor);
  auto& scaler = loop.scaling.scaler;
  return scaler ? scaler->scale(part) : part;
}

void BackwardRunner::run(const at::Tensor& loss, double factor, const BackwardOptions& options) {
  at::Tensor root = scaled(loss, factor);
  const bool must_compare = parts_.model_check.read_graph(root, parts_.accumulation.has_held());
  if (options.computed && root.requires_grad()) {
    if (root.is_same(loss)) {
      root = at::mul(loss, 1.0);  // The program's own tensor must not keep the hook.
    }
    root.register_hook([computed = options.computed](const at::Tensor&) {
      BackwardHooks::at_end_of_backward(computed);  // Before the averaging registers its callback.
    });
  }
  const std::vector<PreparedModel>& models = parts_.objects.models;
  caller_ = Caller::kRunner;
  try {
    if (models.size() == 1) {
      models[0].sync->begin_backward();
    }
    // With a single model a loss that depends on no parameter is this rank's zero; the others wait
    // for it.
    if (root.requires_grad()) {
      root.backward({}, options.retain_graph);
    } else if (!parts_.objects.context.is_distributed() || models.size() != 1) {
      refuse_loss_without_gradient("the loss does not depend");
    }
    for (const PreparedModel& model : models) {
      model.sync->finish_backward();
    }
    if (!root.requires_grad() && parts_.loop.accumulation.averages() && !parts_.loop.joining &&
        !models.front().sync->has_gradients()) {
      refuse_loss_without_gradient("no process's loss depends");
    }
    if (must_compare) {
      parts_.model_check.compare();
    }
  } catch (...) {
    abandon();
    throw;
  }
  caller_ = Caller::kNone;
  parts_.update_check.note_backward();
}

void BackwardRunner::abandon() noexcept {
  for (const PreparedModel& model : parts_.objects.models) {
    model.sync->abandon_backward();
  }
  caller_ = Caller::kNone;
}

/// Drops an unfinished backward of the program: it has thrown, which only the program has caught.
void BackwardRunner::abandon_program_backward() noexcept {
  if (caller_ == Caller::kProgram) {
    leave_program_backward();
    abandon();
  }
}

void BackwardRunner::leave_program_backward() noexcept {
  if (parts_.loop.recorder) {
    parts_.loop.recorder->leave();
  }
}

void BackwardRunner::average_gradients() {
  const StepPartScope scope(parts_.loop.recorder, tracking::StepPart::kBackward);
  if (parts_.loop.accumulation.no_sync_depth > 0) {
    throw ConfigError(
        "average_gradients",
        "average_gradients() was called within no_sync(), which averages nothing; call it after "
        "that scope ends");
  }
  abandon_program_backward();
  parts_.loop.clipped.clear();
  try {
    for (const PreparedModel& model : parts_.objects.models) {
      model.sync->begin_backward();
      model.sync->finish_backward();
    }
  } catch (...) {
    abandon();
    throw;
  }
}

// --- backward passes that the program starts

at::Tensor BackwardRunner::scale_loss(const at::Tensor& loss, BackwardCallbacks callbacks) {
  require_one_number(loss);
  if (!loss.requires_grad()) {
    throw ConfigError(
        "backward",
        "the loss depends on no tensor that requires a gradient, so .backward() cannot be called "
        "on it; call backward(loss), which averages zeros for this process");
  }
  note_loss(loss);
  // A separate tensor, since it keeps the hook.
  const at::Tensor root = scaled(at::mul(loss, accumulation_factor()), 1);
  root.register_hook([this,
                      alive = std::weak_ptr<const void>(alive_),
                      callbacks = std::move(callbacks)](const at::Tensor&) {
    run_callback([&] {
      if (alive.expired()) {
        throw ConfigError(
            "backward",
            "the Accelerator that scaled this loss was destroyed; scale the loss again");
      }
      on_program_backward_begin(callbacks);
    });
  });
  return root;
}

void BackwardRunner::on_program_backward_begin(const BackwardCallbacks& callbacks) {
  const int backward = BackwardHooks::current_backward();
  if (caller_ == Caller::kRunner) {
    throw ConfigError(
        "backward",
        "the loss is already scaled; call .backward() on it, or pass the unscaled loss");
  }
  if (caller_ == Caller::kProgram && program_backward_ == backward) {
    return;  // Two scaled losses in one backward.
  }
  abandon_program_backward();
  if (callbacks.begins) {
    callbacks.begins();
  }
  caller_ = Caller::kProgram;
  program_backward_ = backward;
  if (parts_.loop.recorder) {
    parts_.loop.recorder->enter(tracking::StepPart::kBackward);
  }
  if (parts_.objects.models.size() == 1) {
    parts_.objects.models[0].sync->begin_backward();
  }
  BackwardHooks::at_end_of_backward([this, alive = std::weak_ptr<const void>(alive_), callbacks] {
    if (!alive.expired()) {
      on_program_backward_end(callbacks);
    }
  });
}

void BackwardRunner::on_program_backward_end(const BackwardCallbacks& callbacks) {
  leave_program_backward();
  const StepPartScope scope(parts_.loop.recorder, tracking::StepPart::kBackward);
  try {
    if (callbacks.computed) {
      callbacks.computed();
    }
    for (const PreparedModel& model : parts_.objects.models) {
      model.sync->finish_backward();
    }
  } catch (...) {
    abandon();
    if (callbacks.ends) {
      callbacks.ends();
    }
    throw;
  }
  caller_ = Caller::kNone;
  parts_.update_check.note_backward();
  if (callbacks.ends) {
    callbacks.ends();
  }
}

// --- backward passes of unscaled losses, which the program starts

void BackwardRunner::watch_unscaled_backward(std::function<void()> check) {
  set_hooks(std::move(check));
  watch_.set_by_engine = true;
}

void BackwardRunner::set_ends_update(std::function<bool()> ends_update) {
  parts_.loop.accumulation.ends_update = std::move(ends_update);
}

void BackwardRunner::watch_prepared() {
  const size_t models = parts_.objects.models.size();
  if (parts_.loop.accumulation.plugin.num_steps > 1 && !watch_.set_by_engine &&
      watch_.models != models) {
    set_hooks([this] { refuse_unscaled_backward(); });
    watch_.models = models;
  }
}

void BackwardRunner::set_hooks(std::function<void()> check) {
  std::vector<at::Tensor> watched;
  for (const PreparedModel& model : parts_.objects.models) {
    for (const NamedTensor& item : trainable(model.parameters())) {
      watched.push_back(item.tensor);
    }
  }
  watch_.hooks = std::make_unique<BackwardHooks>(
      watched, [this, check = std::move(check)](size_t) { on_gradient(check); });
}

void BackwardRunner::on_gradient(const std::function<void()>& check) {
  const int backward = BackwardHooks::current_backward();
  const bool is_scaled = caller_ == Caller::kProgram && program_backward_ == backward;
  if (caller_ == Caller::kRunner || is_scaled || watch_.accepted == backward) {
    return;
  }
  abandon_program_backward();
  try {
    check();
  } catch (...) {
    abandon();  // The models' syncs have begun it.
    throw;
  }
  watch_.accepted = backward;
  parts_.active.mark_trained();
  ++parts_.loop.backward_passes;
  parts_.loop.clipped.clear();
}

void BackwardRunner::refuse_unscaled_backward() const {
  const AccumulationState& accumulation = parts_.loop.accumulation;
  if (accumulation.in_micro_step && accumulation.plugin.num_steps > 1) {
    throw ConfigError(
        "backward",
        fmt::format(
            "loss.backward() was called within accumulate(), so its gradients are not divided by "
            "the {} micro-steps of an update; expected accelerator.backward(loss), or "
            "accelerator.scale_loss(loss).backward(), which divide the loss",
            accumulation.plugin.num_steps));
  }
}

void BackwardRunner::remove_hooks() {
  watch_.hooks.reset();
  watch_.set_by_engine = false;
  watch_.models = 0;
}

}  // namespace lockstep
