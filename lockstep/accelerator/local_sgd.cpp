// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/local_sgd/local_sgd.h"

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/optim/state/optimizer_state.h"

namespace lockstep {
namespace {

/// The momenta of one model's parameters, as they are, to be averaged in place.
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

}  // namespace

LocalSgd::LocalSgd(Accelerator& accelerator, const void* model, LocalSgdScopeOptions options)
    : accelerator_(accelerator), exceptions_at_start_(std::uncaught_exceptions()) {
  Accelerator::State& state = *accelerator.state_;
  const auto found = std::find_if(
      state.models.begin(), state.models.end(), [&](const auto& item) { return item.id == model; });
  if (found == state.models.end()) {
    throw ConfigError("local_sgd", "the model was not prepared; prepare it first");
  }
  if (std::any_of(state.local_sgds.begin(), state.local_sgds.end(), [&](const auto& item) {
        return item.first == model;
      })) {
    throw ConfigError("local_sgd", "this model has a LocalSgd already; end that one first");
  }
  if (state.joining) {
    throw ConfigError(
        "local_sgd",
        "does not go with join_uneven_inputs: processes must take equally many updates; use "
        "even_batches");
  }
  if (state.loop->accumulation.sync_each_batch) {
    throw ConfigError(
        "local_sgd",
        "does not go with sync_each_batch, which averages the gradients that shall stay local");
  }
  if (options.enabled) {
    accelerator.refuse_shared_parameters("local_sgd", "each process goes its own way for a while");
    accelerator.refuse_zero("local_sgd", "each process would need all of the optimizer's state");
    // finish() makes optimizers equal by name: seen now rather than after the training.
    state.optimizer_names("local_sgd");
  }
  const LocalSgdOptions core_options{
      .local_sgd_steps = options.local_sgd_steps,
      .enabled = options.enabled,
      .warmup_steps = options.warmup_steps,
      .average_buffers = options.average_buffers};
  std::function<NamedTensors()> momenta;
  if (options.optimizer_state == LocalOptimizerState::kAverage) {
    for (const Optimizer& optimizer : state.optimizers) {
      if (state.own_state_of(optimizer) != nullptr) {
        throw ConfigError(
            "local_sgd",
            "LocalOptimizerState::kAverage averages momenta, and which tensors of an optimizer of "
            "a class of your own are momenta is not known; use LocalOptimizerState::kKeep");
      }
    }
    momenta = [&state, parameters = found->parameters] {
      return momenta_of(state.optimizers, parameters());
    };
  }
  auto core = std::make_shared<LocalSgdCore>(
      found->parallel,
      found->parameters(),
      found->buffers(),
      state.group,
      core_options,
      std::move(momenta));
  if (options.enabled && state.group.size() > 1) {
    core_ = std::move(core);
    state.local_sgds.emplace_back(model, core_);
    state.optimizers_differ = false;
    const size_t index = state.local_sgds.size() - 1;
    if (index < state.restored_local_steps.size() && state.restored_local_steps[index]) {
      core_->load_steps(*std::exchange(state.restored_local_steps[index], std::nullopt));
    }
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
        "LocalSgd ended without finish(): every process is left with its own parameters; call "
        "finish() after the loop");
  }
}

bool LocalSgd::step() {
  return core_ && accelerator_.sync_gradients() && !accelerator_.optimizer_step_was_skipped() &&
         core_->step();
}

void LocalSgd::finish() {
  if (core_) {
    core_->finish();
    unregister();
    core_.reset();
    // Momenta may have drifted apart, and data parallel would then drift after them.
    accelerator_.make_optimizers_equal("local_sgd");
    accelerator_.state_->accumulation_check.forget();
  }
}

int64_t LocalSgd::steps() const {
  return core_ ? core_->steps() : 0;
}

void LocalSgd::unregister() {
  auto& all = accelerator_.state_->local_sgds;
  std::erase_if(all, [&](const auto& item) { return item.second == core_; });
}

}  // namespace lockstep
