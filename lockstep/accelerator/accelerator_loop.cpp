// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/optim/clip.h"

namespace lockstep {

// --- which micro-steps synchronise

GradientScope Accelerator::begin_micro_step(const std::vector<const void*>& models) {
  State& state = *state_;
  LoopState& loop = *state.loop;
  if (loop.in_micro_step) {
    throw ConfigError(
        "accumulate", "inside another accumulate(); pass all models of the micro-step to one");
  }
  state.refuse_unprepared_update();
  GradientSyncs syncs = syncs_of(models);
  loop.update_scaler_if_due();
  if (loop.sync_gradients) {
    loop.in_group = 0;
  }
  ++loop.in_group;
  const GradientAccumulationPlugin& plugin = loop.accumulation;
  const bool at_end = plugin.sync_with_dataloader && state.active->at_last_global_batch();
  loop.step = at_end ? 0 : loop.step + 1;
  loop.sync_gradients = at_end || loop.step % plugin.num_steps == 0;
  loop.in_micro_step = true;
  state.accumulation_check.begin();
  loop.counts_in_micro_step = 0;
  if (loop.sync_gradients && !loop.counted && loop.in_group > 1) {
    // What is there was divided by num_steps, of which there may turn out to be fewer.
    scale_gradients(static_cast<double>(plugin.num_steps) / static_cast<double>(loop.in_group));
  }
  const bool each = plugin.sync_each_batch || (is_sharded() && state.options.zero->stage >= 2);
  const bool hold = !loop.sync_gradients && !each;
  return GradientScope([this, held = hold_back(hold ? syncs : GradientSyncs())] {
    release(held);
    state_->loop->in_micro_step = false;
  });
}

GradientScope Accelerator::begin_no_sync(const std::vector<const void*>& models) {
  GradientSyncs held = hold_back(syncs_of(models));
  ++state_->loop->no_sync_depth;
  return GradientScope([this, held = std::move(held)] {
    release(held);
    state_->loop->no_sync_depth = std::max(0, state_->loop->no_sync_depth - 1);
    state_->loop->sync_triggered = false;
  });
}

void Accelerator::trigger_sync_of(const std::vector<const void*>& models) {
  if (state_->loop->no_sync_depth == 0) {
    throw ConfigError(
        "trigger_sync_in_backward", "outside of no_sync(), where every backward averages anyway");
  }
  state_->loop->sync_triggered = true;
  for (const auto& sync : syncs_of(models)) {
    sync->set_sync(true);
  }
}

GradientSyncs Accelerator::syncs_of(const std::vector<const void*>& models) const {
  GradientSyncs chosen;
  for (const State::Model& model : state_->models) {
    if (models.empty()) {
      chosen.push_back(model.sync);
    }
  }
  for (const void* id : models) {
    const auto found =
        std::find_if(state_->models.begin(), state_->models.end(), [&](const State::Model& model) {
          return model.id == id;
        });
    if (found == state_->models.end()) {
      throw ConfigError("accumulate", "one of the models was not prepared; prepare it first");
    }
    chosen.push_back(found->sync);
  }
  return chosen;
}

GradientSyncs Accelerator::hold_back(GradientSyncs syncs) {
  for (const auto& sync : syncs) {
    ++state_->holds[sync.get()];
    sync->set_sync(false);
  }
  return syncs;
}

void Accelerator::release(const GradientSyncs& held) {
  for (const auto& sync : held) {
    const auto count = state_->holds.find(sync.get());
    if (count != state_->holds.end() && --count->second == 0) {
      sync->set_sync(true);
    }
  }
}

bool Accelerator::sync_gradients() const {
  return state_->loop->sync_gradients;
}

int64_t Accelerator::gradient_accumulation_steps() const {
  return state_->loop->accumulation.num_steps;
}

// --- gradients of a group

void Accelerator::scale_gradients(double factor) {
  if (factor == 1) {
    return;
  }
  std::set<const void*> seen;
  std::vector<at::Tensor> gradients;
  const auto add = [&](const at::Tensor& parameter) {
    if (parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
      gradients.push_back(parameter.grad());
    }
  };
  if (state_->sharding) {
    gradients = state_->sharding->held_gradients();
  }
  for (const State::Model& model : state_->models) {
    for (const NamedTensor& item : model.parameters()) {
      add(item.tensor);
    }
  }
  for (const Optimizer& optimizer : state_->optimizers) {
    for (const at::Tensor& parameter : optimizer.parameters()) {
      add(parameter);
    }
  }
  if (!gradients.empty()) {
    const c10::AutoGradMode no_grad(false);
    at::_foreach_mul_(gradients, factor);
  }
}

void Accelerator::clear_gradients() {
  for (const State::Model& model : state_->models) {
    for (const NamedTensor& item : model.parameters()) {
      item.tensor.mutable_grad().reset();
    }
  }
  if (state_->sharding) {
    state_->sharding->drop_gradients();  // Of the pieces.
  }
  state_->accumulation_check.forget();
  state_->loop->clipped.clear();
  state_->norms = {};
}

// --- precision

Autocast Accelerator::autocast(std::optional<AutocastOptions> options) const {
  State& state = *state_;
  const AutocastOptions chosen = options.value_or(state.options.autocast);
  state.autocast_used = true;
  const bool mixed = state.precision != Precision::kNo && chosen.enabled;
  return Autocast(
      device().type(),
      mixed ? autocast_dtype(state.precision) : at::kBFloat16,
      mixed,
      chosen.cache_enabled);
}

void Accelerator::warn_of_unused_precision() {
  State& state = *state_;
  if (!state.autocast_used && state.precision != Precision::kNo && !state.warned_of_precision) {
    state.warned_of_precision = true;
    log_warning(fmt::format(
        "mixed_precision is {}, and no forward has run under accelerator.autocast() yet: what was "
        "computed so far was computed in the model's own dtype",
        name_of(state.precision)));
  }
}

Precision Accelerator::mixed_precision() const {
  return state_->precision;
}

GradScaler* Accelerator::scaler() {
  LoopState& loop = *state_->loop;
  loop.update_scaler_if_due();
  return loop.scaler ? &*loop.scaler : nullptr;
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::any_of(
      state_->optimizers.begin(), state_->optimizers.end(), [](const Optimizer& optimizer) {
        return optimizer.step_was_skipped();
      });
}

// --- gradients between backward and step

void Accelerator::unscale_gradients() {
  LoopState& loop = *state_->loop;
  if (!loop.scaler || !loop.sync_gradients) {
    return;
  }
  for (const Optimizer& optimizer : state_->optimizers) {
    loop.scaler->unscale_(&optimizer.inner(), optimizer.parameters());
  }
}

void Accelerator::unscale_gradients(const Optimizer& optimizer) {
  LoopState& loop = *state_->loop;
  if (loop.scaler && loop.sync_gradients) {
    loop.scaler->unscale_(&optimizer.inner(), optimizer.parameters());
  }
}

void Accelerator::unscale_gradients_of(const std::vector<at::Tensor>& parameters) {
  if (!state_->loop->scaler) {
    return;
  }
  // Not every optimizer's: the turn of another may come after a backward of its own.
  std::set<const void*> chosen;
  if (state_->sharding) {
    unscale_gradients();  // Of the one optimizer there is, of which this rank may have no piece.
    return;
  }
  for (const at::Tensor& parameter : parameters) {
    chosen.insert(parameter.unsafeGetTensorImpl());
  }
  for (const Optimizer& optimizer : state_->optimizers) {
    const std::vector<at::Tensor> theirs = optimizer.parameters();
    if (std::any_of(theirs.begin(), theirs.end(), [&](const at::Tensor& parameter) {
          return chosen.contains(parameter.unsafeGetTensorImpl());
        })) {
      unscale_gradients(optimizer);
    }
  }
}

at::Tensor Accelerator::clip_grad_norm_(
    const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  State& state = *state_;
  if (!state.loop->sync_gradients) {
    return state.norms.before.defined() ? state.norms.before : at::zeros({});
  }
  std::vector<const void*> same;
  for (const at::Tensor& parameter : parameters) {
    same.push_back(parameter.unsafeGetTensorImpl());
  }
  for (const LoopState::Clipped& done : state.loop->clipped) {
    if (done.max_norm == max_norm && done.norm_type == norm_type && done.parameters == same) {
      return done.norm;
    }
  }
  unscale_gradients_of(parameters);
  at::Tensor norm;
  if (state.sharding) {
    norm = optim::clip_grad_norm_(
        state.sharding->slices().of(parameters),
        max_norm,
        norm_type,
        /*error_if_nonfinite=*/false,
        [&](const at::Tensor& own) { return state.sharding->norm_over_ranks(own, norm_type); });
  } else {
    norm = optim::clip_grad_norm_(parameters, max_norm, norm_type);
  }
  state.norms.before = norm;
  state.norms.after =
      at::mul(norm, at::clamp_max(at::mul(at::reciprocal(at::add(norm, 1e-6)), max_norm), 1));
  state.loop->clipped.push_back({max_norm, norm_type, std::move(same), norm});
  return norm;
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (!state_->loop->sync_gradients) {
    return;
  }
  unscale_gradients_of(parameters);
  optim::clip_grad_value_(
      state_->sharding ? state_->sharding->slices().of(parameters) : parameters, clip_value);
}

const GradientNorms& Accelerator::gradient_norms() const {
  return state_->norms;
}

}  // namespace lockstep
