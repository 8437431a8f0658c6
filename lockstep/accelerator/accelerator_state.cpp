// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/accelerator_state.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include <c10/core/GradMode.h>

#include "lockstep/accelerator/training_state/saved_optimizer.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/sync/reducer.h"

namespace lockstep {
namespace {

constexpr int64_t kMostCompared = 64;  // Elements of a tensor.

/// The first elements of a tensor, as bytes.
void append_elements(std::string& bytes, const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor flat = tensor.detach().reshape({-1});
  const at::Tensor first =
      flat.narrow(0, 0, std::min(flat.numel(), kMostCompared)).to(at::kCPU).contiguous();
  bytes.append(static_cast<const char*>(first.const_data_ptr()), first.nbytes());
}

}  // namespace

ParameterName Accelerator::State::parameter_names(const char* where) const {
  auto names = std::make_shared<std::map<const void*, std::string>>();
  for (const Model& model : models) {
    for (const NamedTensor& item : model.parameters()) {
      names->emplace(item.tensor.unsafeGetTensorImpl(), model.prefix + item.name);
    }
  }
  if (sharding) {
    for (const auto& [shard_slice, of] : sharding->shard_slices()) {
      names->emplace(shard_slice, names->at(of.parameter.unsafeGetTensorImpl()));
    }
  }
  return [names, where = std::string(where)](const at::Tensor& parameter) {
    const auto found = names->find(parameter.unsafeGetTensorImpl());
    if (found == names->end()) {
      throw ConfigError(
          where, "an optimizer has a parameter of no prepared model; prepare that model too");
    }
    return found->second;
  };
}

ParameterName Accelerator::State::optimizer_names(const char* where) const {
  ParameterName names = parameter_names(where);
  for (const Optimizer& optimizer : optimizers) {
    if (own_state_of(optimizer) == nullptr) {
      expect_readable_state(
          optimizer.inner(), where, "all processes get the state of one process's optimizer");
    }
    for (const at::Tensor& parameter : optimizer.parameters()) {
      names(parameter);
    }
  }
  return names;
}

void Accelerator::State::refuse_undivided_backward() const {
  const int64_t steps = loop->accumulation.num_steps;
  if (loop->in_micro_step && steps > 1) {
    throw ConfigError(
        "backward",
        fmt::format(
            "loss.backward() was called within accumulate(), so its gradients are not divided by "
            "the {} micro-steps of an update; expected accelerator.backward(loss), or "
            "accelerator.scale_loss(loss).backward(), which divide the loss",
            steps));
  }
}

void Accelerator::State::expect_model() const {
  // A prepared optimizer compares the gradients, which the program may average itself.
  if (models.empty() && optimizers.empty() && group.size() > 1) {
    throw ConfigError(
        "backward",
        fmt::format(
            "got no prepared model in a job of {} processes, so nothing would average the "
            "gradients and each process would train weights of its own; call prepare(model, "
            "optimizer, ...) first, or loss.backward() for gradients that each process is to keep "
            "for itself",
            group.size()));
  }
}

void Accelerator::State::watch_accumulation() {
  if ((loop->accumulation.num_steps == 1 && !loop->scaler) || sharding) {
    accumulation_check.watch({});
    return;
  }
  std::set<const void*> guarded;  // The step of their optimizer refuses such calls itself.
  for (const Optimizer& optimizer : optimizers) {
    if (dynamic_cast<const optim::FlatOptimizer*>(&optimizer.inner()) != nullptr) {
      for (const at::Tensor& parameter : optimizer.parameters()) {
        guarded.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  NamedTensors watched;
  for (const Model& model : models) {
    for (const NamedTensor& item : trainable(model.parameters())) {
      if (!guarded.contains(item.tensor.unsafeGetTensorImpl())) {
        watched.push_back({model.prefix + item.name, item.tensor});
      }
    }
  }
  accumulation_check.watch(std::move(watched));
}

void Accelerator::State::note_for_accumulation_check() {
  if (loop->scaler || (loop->in_micro_step && !loop->sync_gradients)) {
    steps_when_noted = loop->prepared_steps;
    accumulation_check.note();
  }
}

void Accelerator::State::refuse_unprepared_update() {
  if (steps_when_noted != loop->prepared_steps) {
    accumulation_check.forget();
    return;
  }
  const std::optional<NamedTensor> changed = accumulation_check.changed_again();
  if (!changed) {
    return;
  }
  const bool is_prepared =
      std::any_of(optimizers.begin(), optimizers.end(), [&](const Optimizer& optimizer) {
        const std::vector<at::Tensor> theirs = optimizer.parameters();
        return std::any_of(theirs.begin(), theirs.end(), [&](const at::Tensor& parameter) {
          return parameter.is_same(changed->tensor);
        });
      });
  const bool is_scaled = loop->scaler && loop->sync_gradients;
  const std::string_view remedy =
      is_prepared && is_scaled
          ? "use the optimizer that prepare returned: its step() divides by that scale, and that "
            "of the optimizer passed to prepare does not"
      : is_prepared
          ? "use the optimizer that prepare returned: its step() waits for the group's end, and "
            "that of the optimizer passed to prepare does not"
          : "no prepared optimizer has this parameter: pass its optimizer to prepare, and use the "
            "optimizer that prepare returns";
  if (is_scaled) {
    throw ConfigError(
        "backward",
        fmt::format(
            "{} was updated by gradients that are still multiplied by fp16's loss scale of {}; {}; "
            "code that writes to parameters itself belongs after the optimizer's step()",
            changed->name,
            loop->scaler->get_scale(),
            remedy));
  }
  throw ConfigError(
      "accumulate",
      fmt::format(
          "{} was updated after micro-step {} of {}, before the gradients of all of them were "
          "averaged; {}; code that writes to parameters itself belongs where sync_gradients() is "
          "true",
          changed->name,
          loop->in_group,
          loop->accumulation.num_steps,
          remedy));
}

std::set<const void*> Accelerator::State::prepared_parameters() const {
  std::set<const void*> all;
  for (const Model& model : models) {
    for (const NamedTensor& item : model.parameters()) {
      all.insert(item.tensor.unsafeGetTensorImpl());
    }
  }
  return all;
}

bool Accelerator::State::looks_for_unprepared() const {
  // With one model every backward that averages is one of all processes; with more, some may have
  // no part in it.
  return !unprepared_leaves.is_through() && group.size() > 1 && models.size() == 1 && !joining &&
         local_sgds.empty() && holds.empty() && loop->sync_gradients && loop->no_sync_depth == 0;
}

bool Accelerator::State::agree_on_unprepared(const std::vector<at::Tensor>& parameters) {
  if (joining) {
    return false;  // Some processes may be through.
  }
  const std::set<const void*> prepared = prepared_parameters();
  size_t count = 0;
  std::string values, gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad() && !prepared.contains(parameter.unsafeGetTensorImpl())) {
      ++count;
      append_elements(values, parameter);
      if (parameter.grad().defined()) {
        append_elements(gradients, parameter.grad());
      }
    }
  }
  if (count == 0) {
    return true;
  }
  const std::vector<std::string> all = all_gather_bytes(group, values + "/" + gradients);
  const bool any_gradient = std::any_of(all.begin(), all.end(), [&](const std::string& theirs) {
    return theirs.size() > values.size() + 1;
  });
  const auto differs = [&](const std::string& theirs) { return theirs != all[0]; };
  if (any_gradient && std::any_of(all.begin(), all.end(), differs)) {
    throw ConfigError(
        "optimizer",
        fmt::format(
            "{} of this optimizer's {} parameters are of no prepared model, and their values or "
            "gradients differ between processes, so each process would train its own; pass their "
            "model to prepare, or average their gradients with accelerator.reduce before step(); "
            "keep an optimizer of parameters that are to differ out of prepare",
            count,
            parameters.size()));
  }
  return any_gradient;
}

}  // namespace lockstep
