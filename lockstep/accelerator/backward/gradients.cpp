// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/backward/gradients.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "lockstep/optim/clip.h"
#include "lockstep/zero/gradient_placeholders.h"

namespace lockstep::internal {

void Gradients::scale(double factor) {
  if (factor == 1) {
    return;
  }
  std::set<const void*> seen;
  std::vector<at::Tensor> gradients;
  const auto add = [&](const at::Tensor& parameter) {
    if (parameter.grad().defined() && !zero::is_gradient_placeholder(parameter.grad()) &&
        seen.insert(parameter.unsafeGetTensorImpl()).second) {
      gradients.push_back(parameter.grad());
    }
  };
  if (objects_.sharding) {
    gradients = objects_.sharding->held_gradients();
  }
  for (const PreparedModel& model : objects_.models) {
    for (const NamedTensor& item : model.parameters()) {
      add(item.tensor);
    }
  }
  for (const Optimizer& optimizer : objects_.optimizers) {
    for (const at::Tensor& parameter : optimizer.parameters()) {
      add(parameter);
    }
  }
  if (!gradients.empty()) {
    const c10::AutoGradMode no_grad(false);
    at::_foreach_mul_(gradients, factor);
  }
}

void Gradients::clear() {
  for (const PreparedModel& model : objects_.models) {
    for (const NamedTensor& item : model.parameters()) {
      item.tensor.mutable_grad().reset();
    }
  }
  if (objects_.sharding) {
    objects_.sharding->drop_gradients();  // Those of the shards.
  }
  step_.notify(&TrainingStepObserver::equal_changes_made);
  step_.gradients_changed();
  forget_norms();
}

void Gradients::unscale() {
  for (const Optimizer& optimizer : objects_.optimizers) {
    unscale(optimizer);
  }
}

void Gradients::unscale(const Optimizer& optimizer) {
  GradScaler* const scaler = step_.scaler();
  if (scaler != nullptr && step_.sync_gradients()) {
    scaler->unscale_(&optimizer.inner(), optimizer.parameters());
  }
}

void Gradients::unscale_optimizers_of(const std::vector<at::Tensor>& parameters) {
  if (step_.scaler() == nullptr) {
    return;
  }
  if (objects_.sharding) {
    unscale();  // ZeRO has one optimizer, of whose parameters this rank may have no shard.
    return;
  }
  // Not every optimizer's: another one may step after a backward of its own.
  std::set<const void*> chosen;
  for (const at::Tensor& parameter : parameters) {
    chosen.insert(parameter.unsafeGetTensorImpl());
  }
  for (const Optimizer& optimizer : objects_.optimizers) {
    const std::vector<at::Tensor> theirs = optimizer.parameters();
    if (std::any_of(theirs.begin(), theirs.end(), [&](const at::Tensor& parameter) {
          return chosen.contains(parameter.unsafeGetTensorImpl());
        })) {
      unscale(optimizer);
    }
  }
}

at::Tensor Gradients::clip_norm(
    const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  if (!step_.sync_gradients()) {
    return norms_.before.defined() ? norms_.before : at::zeros({});
  }
  step_.count_clipping();
  if (const at::Tensor* const done = step_.clipped_norm(parameters, max_norm, norm_type)) {
    return *done;
  }
  unscale_optimizers_of(parameters);
  const auto& sharding = objects_.sharding;
  if (sharding) {
    sharding->apply_drops();
  }
  const at::Tensor norm = optim::clip_grad_norm_(
      held(parameters),
      max_norm,
      norm_type,
      /*error_if_nonfinite=*/false,
      [&](const at::Tensor& own) { return norm_over_ranks(parameters, own, norm_type); });
  norms_.before = norm;
  norms_.after =
      at::mul(norm, at::clamp_max(at::mul(at::reciprocal(at::add(norm, 1e-6)), max_norm), 1));
  step_.note_clipped(parameters, max_norm, norm_type, norm);
  return norm;
}

/// Returns the tensors with this process's gradients of `parameters`.
std::vector<at::Tensor> Gradients::held(const std::vector<at::Tensor>& parameters) const {
  return objects_.sharding ? objects_.sharding->slices().of(parameters) : parameters;
}

/// Returns the norm of the gradients of all processes. `own`: that of this process's.
at::Tensor Gradients::norm_over_ranks(
    const std::vector<at::Tensor>& parameters, const at::Tensor& own, double norm_type) const {
  at::Tensor of_stage = norm_over_replicas(parameters, own, norm_type);
  const pipeline::Stage* const stage = objects_.stage();
  if (stage == nullptr) {
    return of_stage;
  }
  Group group = objects_.context.mesh.pipeline;
  if (std::isinf(norm_type)) {
    return group.all_reduce(of_stage.clone(), ReduceOp::kMax).wait();
  }
  // The gradients of tied parameters count once.
  std::vector<at::Tensor> copies;
  std::copy_if(
      parameters.begin(), parameters.end(), std::back_inserter(copies), [&](const auto& parameter) {
        return stage->is_later_copy(parameter);
      });
  const at::Tensor counted = norm_over_replicas(
      copies, optim::grad_norm(held(copies), norm_type).to(of_stage.options()), norm_type);
  const at::Tensor part =
      at::clamp_min(at::sub(at::pow(of_stage, norm_type), at::pow(counted, norm_type)), 0);
  return at::pow(group.all_reduce(part).wait(), 1 / norm_type);
}

/// Returns the norm over the processes with the same layers.
at::Tensor Gradients::norm_over_replicas(
    const std::vector<at::Tensor>& parameters, const at::Tensor& own, double norm_type) const {
  const zero::Sharding* const sharding = objects_.sharding.get();
  const auto over_shards = [&](const at::Tensor& norm) {
    return sharding ? objects_.sharding->norm_over_ranks(norm, norm_type) : norm;
  };
  // The shards of all processes together have each expert once.
  Group parts = objects_.context.mesh.tensor;
  Group experts = sharding ? Group() : objects_.context.mesh.experts;
  if (parts.size() * experts.size() == 1) {
    return over_shards(own);
  }
  if (std::isinf(norm_type)) {
    const at::Tensor of_line = parts.all_reduce(over_shards(own).clone(), ReduceOp::kMax).wait();
    return experts.all_reduce(of_line, ReduceOp::kMax).wait();
  }
  // The parts of divided parameters add up, and so do experts; every process has the whole ones.
  const auto power = [&](const auto& is_counted) {
    std::vector<at::Tensor> counted;
    std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(counted), is_counted);
    const at::Tensor norm = optim::grad_norm(held(counted), norm_type);
    // A process without shards has a norm of another dtype; the sharding agrees on one.
    return at::pow(sharding ? over_shards(norm) : norm.to(own.options()), norm_type);
  };
  const auto is_part = [&](const at::Tensor& each) {
    return objects_.division_of(each) != nullptr;
  };
  const auto is_expert = [&](const at::Tensor& each) {
    return experts.size() > 1 && objects_.is_expert(each);
  };
  at::Tensor sum =
      power([&](const at::Tensor& each) { return !is_part(each) && !is_expert(each); });
  sum = at::add(sum, parts.all_reduce(power(is_part)).wait());
  if (experts.size() > 1) {
    sum = at::add(sum, experts.all_reduce(power(is_expert)).wait());
  }
  return at::pow(sum, 1 / norm_type);
}

void Gradients::clip_value(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (!step_.sync_gradients()) {
    return;
  }
  step_.count_clipping();
  unscale_optimizers_of(parameters);
  if (objects_.sharding) {
    objects_.sharding->apply_drops();
  }
  optim::clip_grad_value_(held(parameters), clip_value);
}

std::vector<std::string> Gradients::parameters_without_gradient() const {
  if (objects_.sharding) {
    return objects_.sharding->without_gradient();
  }
  std::vector<std::string> without;
  const ParameterName names = objects_.parameter_names("parameters_without_gradient");
  for (const Optimizer& optimizer : objects_.optimizers) {
    for (const at::Tensor& parameter : optimizer.parameters()) {
      if (parameter.requires_grad() && !parameter.grad().defined()) {
        without.push_back(names(parameter));
      }
    }
  }
  return without;
}

}  // namespace lockstep::internal
