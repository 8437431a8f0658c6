// SPDX-License-Identifier: Apache-2.0
// What a run keeps on the device, in the host's memory for a while.
#include <map>
#include <utility>
#include <vector>

#include <ATen/DeviceAccelerator.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/optim/flat/capturable.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep {
namespace {

using Memory = std::map<OffloadStateType, std::vector<at::Tensor>>;

void add_optimizer_state(const Optimizer& optimizer, std::vector<at::Tensor>& memory) {
  const auto* flat = dynamic_cast<const optim::FlatOptimizer*>(&optimizer.inner());
  if (flat == nullptr) {
    throw ConfigError(
        "offload_states",
        "the state of an optimizer of torch::optim is its own; prepare one of lockstep::optim, or "
        "leave kOptimStates out of `include`");
  }
  for (const at::Tensor& parameter : optimizer.parameters()) {
    const auto fields = flat->state_of(parameter).fields;
    memory.insert(memory.end(), fields.begin(), fields.end());
  }
}

/// Its graphs know where all of this lies, and would be replayed on memory that others have by
/// then.
void refuse_graphs(const Optimizer& optimizer) {
  for (const auto& group : optimizer.inner().param_groups()) {
    const auto* options = dynamic_cast<const optim::CapturableOptions*>(&group.options());
    if (options != nullptr && options->capturable()) {
      throw ConfigError(
          "offload_states",
          "moves what graphs of an update read and write, which would go on where it was; got an "
          "optimizer with capturable true; leave capturable out, or the states where they are");
    }
  }
}

}  // namespace

void Accelerator::offload_states(const OffloadStatesOptions& options) {
  State& state = *state_;
  if (options.device == OffloadDevice::kNone) {
    log_warning("offload_states: device kNone says nowhere to; nothing is moved");
    return;
  }
  if (options.device == OffloadDevice::kNvme) {
    throw ConfigError(
        "offload_states",
        "goes to the host's memory only; got device kNvme, expected kCpu; for files set "
        "offload_optimizer.device when the run begins");
  }
  if (state.options.zero && state.options.zero->offload_param.device != OffloadDevice::kNone) {
    throw ConfigError(
        "offload_states",
        "does not go with offload_param: the parameters are off the device already, and so is the "
        "optimizer's state; leave one of them out");
  }
  if (state.optimizers.empty()) {
    throw ConfigError("offload_states", "there is no optimizer; prepare one with its model first");
  }
  for (const Optimizer& optimizer : state.optimizers) {
    if (!device().is_cpu()) {
      refuse_graphs(optimizer);
    }
  }
  const auto wanted = [&](OffloadStateType type) {
    return !state.offloaded.contains(type) && (!options.include || options.include->contains(type));
  };
  if (!device().is_cpu()) {
    at::accelerator::synchronizeDevice(device().index());  // Side streams may still read it.
  }
  Memory memory;
  if (wanted(OffloadStateType::kOptimStates)) {
    for (const Optimizer& optimizer : state.optimizers) {
      add_optimizer_state(optimizer, memory[OffloadStateType::kOptimStates]);
    }
  }
  if (state.sharding) {
    state.sharding
        ->finish_parameter_use();  // Units that are whole go, as they would for an update.
    zero::Sharding::Memory own = state.sharding->memory();
    memory[OffloadStateType::kLpParams] = std::move(own.parameters);
    memory[OffloadStateType::kHpParams] = std::move(own.masters);
    memory[OffloadStateType::kLpGrads] = std::move(own.gradients);
  } else {
    for (const State::Model& model : state.models) {
      for (const NamedTensor& item : model.parameters()) {
        memory[OffloadStateType::kLpParams].push_back(item.tensor);
        memory[OffloadStateType::kLpGrads].push_back(item.tensor.grad());
      }
    }
  }
  for (const OffloadStateType type :
       {OffloadStateType::kOptimStates,
        OffloadStateType::kHpParams,
        OffloadStateType::kLpParams,
        OffloadStateType::kLpGrads,
        OffloadStateType::kContiguousGradBuffer}) {
    if (wanted(type)) {
      state.offloaded.emplace(
          type, offload::OffloadedStorage(memory[type], options.pin_memory, options.non_blocking));
    }
  }
  state.loop->offloaded = !state.offloaded.empty();
}

void Accelerator::reload_states(bool non_blocking) {
  State& state = *state_;
  while (!state.offloaded.empty()) {
    const auto first = state.offloaded.begin();
    first->second.reload(non_blocking);
    state.offloaded.erase(first);
  }
  state.loop->offloaded = false;
}

void Accelerator::refuse_offloaded(const char* where) const {
  if (state_->loop->offloaded) {
    throw ConfigError(
        where,
        "states lie in the host's memory since offload_states(); call reload_states() first");
  }
}

}  // namespace lockstep
