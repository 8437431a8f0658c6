// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/backward/backward_runner.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>

#include "lockstep/accelerator/backward/gradients.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/prepare/equal_optimizers.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/base/callback.h"
#include "lockstep/base/error.h"
#include "lockstep/flat/parameters.h"

namespace lockstep::internal {
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

}  // namespace

// --- backward passes that this class runs

void BackwardRunner::backward(const at::Tensor& loss, const BackwardOptions& options) {
  const LoopPartScope scope(step_, tracking::LoopPart::kBackward);
  require_one_number(loss);
  run({loss}, step_.loss_factor(), options);
}

void BackwardRunner::backward(const at::Tensor& loss_sum, double count) {
  const LoopPartScope scope(step_, tracking::LoopPart::kBackward);
  require_one_number(loss_sum);
  const bool is_first = step_.add_count(count);
  const GivenLoss given{loss_sum, count};
  if (!step_.position().averages()) {
    run(given, 1);
    return;
  }
  double total = step_.take_count();
  const RunContext& context = objects_.context;
  if (context.has_replicas()) {
    Group group = context.mesh.replicas;
    total = group.all_reduce(at::full({1}, total, at::kDouble)).wait().item<double>();
  }
  if (total <= 0) {
    throw ConfigError(
        "backward",
        "the counts of all processes and micro-steps add up to 0; expected more than 0; skip a "
        "step without items");
  }
  // Averaging over processes divides by their number, which the total contains already.
  const double factor = context.mesh.replicas.size() / total;
  if (!is_first) {
    gradients_.scale(factor);
  }
  run(given, factor);
}

/// Reports a loss. Returns the tensor to differentiate, which is the loss itself if nothing is
/// multiplied.
at::Tensor BackwardRunner::begin(const GivenLoss& given, double factor) {
  for (const PreparedModel& model : objects_.models) {
    if (model.divided) {
      model.divided->expect_marked();
    }
  }
  step_.give_loss(given);
  abandon_program_backward();
  if (local_sgds_.take_different_optimizers()) {
    make_optimizers_equal(objects_, "load_state");
  }
  return step_.scale(factor == 1 ? given.loss : at::mul(given.loss, factor));
}

void BackwardRunner::run(const GivenLoss& given, double factor, const BackwardOptions& options) {
  at::Tensor root = begin(given, factor);
  if (options.computed && root.requires_grad()) {
    if (root.is_same(given.loss)) {
      root = at::mul(given.loss, 1.0);  // The program's own tensor must not keep the hook.
    }
    root.register_hook([computed = options.computed](const at::Tensor&) {
      BackwardHooks::at_end_of_backward(computed);  // Before the averaging registers its callback.
    });
  }
  const std::vector<PreparedModel>& models = objects_.models;
  caller_ = Caller::kRunner;
  try {
    if (models.size() == 1) {
      models[0].sync->begin_backward();
    }
    // With a single model a loss that depends on no parameter is this rank's zero; the others wait
    // for it.
    if (root.requires_grad()) {
      root.backward({}, options.retain_graph);
    } else if (!objects_.context.has_replicas() || models.size() != 1) {
      refuse_loss_without_gradient("the loss does not depend");
    }
    for (const PreparedModel& model : models) {
      model.sync->finish_backward();
    }
    if (!root.requires_grad() && step_.position().averages() && !step_.is_joining() &&
        !models.front().sync->has_gradients()) {
      refuse_loss_without_gradient("no process's loss depends");
    }
    step_.notify(&TrainingStepObserver::backward_ended);
  } catch (...) {
    abandon();
    throw;
  }
  caller_ = Caller::kNone;
}

void BackwardRunner::abandon() noexcept {
  for (const PreparedModel& model : objects_.models) {
    model.sync->abandon_backward();
  }
  step_.notify(&TrainingStepObserver::backward_abandoned);
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
  step_.notify(&TrainingStepObserver::part_ended);
}

void BackwardRunner::average_gradients() {
  const LoopPartScope scope(step_, tracking::LoopPart::kBackward);
  if (step_.position().no_sync_depth > 0) {
    throw ConfigError(
        "average_gradients",
        "average_gradients() was called within no_sync(), which averages nothing; call it after "
        "that scope ends");
  }
  abandon_program_backward();
  step_.gradients_changed();
  try {
    for (const PreparedModel& model : objects_.models) {
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
  const double factor = step_.loss_factor();
  at::Tensor root = begin({.loss = loss, .by_program = true}, factor);
  if (root.is_same(loss)) {
    root = at::mul(loss, 1.0);  // The program's own tensor must not keep the hook.
  }
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
  step_.notify(&TrainingStepObserver::part_began, tracking::LoopPart::kBackward);
  if (objects_.models.size() == 1) {
    objects_.models[0].sync->begin_backward();
  }
  BackwardHooks::at_end_of_backward([this, alive = std::weak_ptr<const void>(alive_), callbacks] {
    if (!alive.expired()) {
      on_program_backward_end(callbacks);
    }
  });
}

void BackwardRunner::on_program_backward_end(const BackwardCallbacks& callbacks) {
  leave_program_backward();
  const LoopPartScope scope(step_, tracking::LoopPart::kBackward);
  try {
    if (callbacks.computed) {
      callbacks.computed();
    }
    for (const PreparedModel& model : objects_.models) {
      model.sync->finish_backward();
    }
    step_.notify(&TrainingStepObserver::backward_ended);
  } catch (...) {
    abandon();
    if (callbacks.ends) {
      callbacks.ends();
    }
    throw;
  }
  caller_ = Caller::kNone;
  if (callbacks.ends) {
    callbacks.ends();
  }
}

// --- backward passes of unscaled losses, which the program starts

void BackwardRunner::watch_unscaled_backward(std::function<void()> check) {
  set_hooks(std::move(check));
  watch_.set_by_engine = true;
}

void BackwardRunner::watch_prepared() {
  const size_t models = objects_.models.size();
  if (step_.accumulation().num_steps > 1 && !watch_.set_by_engine && watch_.models != models) {
    set_hooks([this] { refuse_unscaled_backward(); });
    watch_.models = models;
  }
}

void BackwardRunner::set_hooks(std::function<void()> check) {
  std::vector<at::Tensor> watched;
  for (const PreparedModel& model : objects_.models) {
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
  step_.count_backward();
}

void BackwardRunner::refuse_unscaled_backward() const {
  const int64_t micro_steps = step_.accumulation().num_steps;
  if (step_.position().in_micro_step && micro_steps > 1) {
    throw ConfigError(
        "backward",
        fmt::format(
            "loss.backward() was called within accumulate(), so its gradients are not divided by "
            "the {} micro-steps of an update; expected accelerator.backward(loss), or "
            "accelerator.scale_loss(loss).backward(), which divide the loss",
            micro_steps));
  }
}

void BackwardRunner::remove_hooks() {
  watch_.hooks.reset();
  watch_.set_by_engine = false;
  watch_.models = 0;
}

}  // namespace lockstep::internal
