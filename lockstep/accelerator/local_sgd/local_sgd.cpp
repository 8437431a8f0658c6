// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/local_sgd/local_sgd.h"

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/prepare/equal_optimizers.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/call_scope.h"
#include "lockstep/optim/state/optimizer_state.h"

namespace lockstep {
namespace {

/// Returns the momenta of one model's parameters, to be averaged in place.
NamedTensors momenta_of(const std::vector<Optimizer>& optimizers, const NamedTensors& parameters) {
  std::map<const void*, std::string> names;
  for (const NamedTensor& item : parameters) {
    names.emplace(item.tensor.unsafeGetTensorImpl(), item.name);
  }
  const std::string another = "?";
  const auto name_of = [&](const at::Tensor& parameter) {
    const auto found = names.find(parameter.unsafeGetTensorImpl());
    return found == names.end() ? another : found->second;
  };
  NamedTensors momenta;
  for (size_t i = 0; i < optimizers.size(); ++i) {
    for (NamedTensor& item : optimizer_tensors(optimizers[i].inner(), name_of)) {
      if (item.tensor.is_floating_point() && !is_scalar_state(item.name) &&
          !item.name.starts_with(another + ".")) {
        momenta.push_back({fmt::format("{}/{}", i, item.name), item.tensor});
      }
    }
  }
  return momenta;
}

/// Throws ConfigError for a mode of training in which processes cannot train separately.
void check_mode(
    const internal::TrainingStep& step, const internal::PreparedObjects& objects, bool enabled) {
  if (step.is_joining()) {
    throw ConfigError(
        "local_sgd",
        "LocalSgd cannot be combined with join_uneven_inputs: all processes must do the same "
        "number of updates; use even_batches");
  }
  if (step.accumulation().sync_each_batch) {
    throw ConfigError(
        "local_sgd",
        "LocalSgd cannot be combined with sync_each_batch, which averages gradients that must stay "
        "local; set it to false");
  }
  if (enabled) {
    objects.refuse_shared_parameters("local_sgd", "each process trains separately for a while");
    objects.refuse_zero("local_sgd", "each process would need all of the optimizer's state");
    for (const internal::PreparedModel& model : objects.models) {
      if (model.experts) {
        throw ConfigError(
            "local_sgd",
            fmt::format(
                "LocalSgd cannot be combined with experts that processes divide, since each uses "
                "those of the others; got the mesh {}; leave ep out",
                mesh_text(objects.context.mesh.shape)));
      }
    }
    if (objects.context.mesh.sequence.size() > 1) {
      throw ConfigError(
          "local_sgd",
          "LocalSgd cannot be combined with cp and sp: each process would train on its part of the "
          "sequence only; use a mesh without them");
    }
    // finish() makes optimizers equal by name; better an error now than after the training.
    objects.optimizer_names("local_sgd");
  }
}

/// Returns the further tensors to average; an empty function for none. Throws ConfigError for an
/// optimizer of the program's own class.
std::function<NamedTensors()> also_averaged(
    const internal::PreparedObjects& objects,
    const internal::PreparedModel& model,
    LocalOptimizerState state) {
  if (state == LocalOptimizerState::kKeep) {
    return nullptr;
  }
  for (const Optimizer& optimizer : objects.optimizers) {
    if (objects.own_state_of(optimizer) != nullptr) {
      throw ConfigError(
          "local_sgd",
          "LocalOptimizerState::kAverage cannot identify the momenta of an optimizer class of your "
          "own; use LocalOptimizerState::kKeep");
    }
  }
  return [&objects, parameters = model.parameters] {
    return momenta_of(objects.optimizers, parameters());
  };
}

}  // namespace

LocalSgd::LocalSgd(Accelerator& accelerator, const void* model, LocalSgdScopeOptions options)
    : step_(internal::AcceleratorInternals::step(accelerator)),
      objects_(internal::AcceleratorInternals::objects(accelerator)),
      scopes_(internal::AcceleratorInternals::local_sgds(accelerator)),
      exceptions_at_start_(std::uncaught_exceptions()) {
  const internal::PreparedModel* const prepared = objects_.find_model(model);
  if (prepared == nullptr) {
    throw ConfigError("local_sgd", "the model was not prepared; prepare it first");
  }
  if (scopes_.has(model)) {
    throw ConfigError("local_sgd", "this model already has a LocalSgd; call its finish() first");
  }
  check_mode(step_, objects_, options.enabled);
  auto core = std::make_shared<LocalSgdCore>(
      prepared->parallel,
      prepared->parameters(),
      prepared->buffers(),
      objects_.context.mesh.replicas,
      LocalSgdOptions{
          .local_sgd_steps = options.local_sgd_steps,
          .enabled = options.enabled,
          .warmup_steps = options.warmup_steps,
          .average_buffers = options.average_buffers},
      also_averaged(objects_, *prepared, options.optimizer_state));
  if (options.enabled && objects_.context.has_replicas()) {
    core_ = std::move(core);
    scopes_.add(model, core_);
  }
}

LocalSgd::~LocalSgd() {
  if (!core_) {
    return;
  }
  core_->abandon();
  unregister();
  if (std::uncaught_exceptions() == exceptions_at_start_) {
    log_error(
        "LocalSgd ended without finish(): every process keeps its own parameters; call finish() "
        "after the loop");
  }
}

bool LocalSgd::step() {
  const comm::CallScope call("LocalSgd::step");
  return core_ && step_.sync_gradients() && !objects_.any_step_was_skipped() && core_->step();
}

void LocalSgd::finish() {
  const comm::CallScope call("LocalSgd::finish");
  if (core_) {
    core_->finish();
    unregister();
    core_.reset();
    // With different momenta the models of data parallel would diverge.
    internal::make_optimizers_equal(objects_, "local_sgd");
    step_.notify(&internal::TrainingStepObserver::equal_changes_made);
  }
}

int64_t LocalSgd::steps() const {
  return core_ ? core_->steps() : 0;
}

void LocalSgd::unregister() {
  scopes_.remove(core_);
}

std::unique_ptr<LocalSgd> internal::AcceleratorInternals::local_sgd(
    Accelerator& accelerator, const void* model, const LocalSgdScopeOptions& options) {
  return std::unique_ptr<LocalSgd>(new LocalSgd(accelerator, model, options));
}

}  // namespace lockstep
