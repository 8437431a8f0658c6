// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/offload_states/state_offloader.h"

#include <utility>
#include <vector>

#include <ATen/DeviceAccelerator.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/optim/flat/capturable.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep::internal {
namespace {

void add_optimizer_state(const Optimizer& optimizer, std::vector<at::Tensor>& memory) {
  const auto* flat = dynamic_cast<const optim::FlatOptimizer*>(&optimizer.inner());
  if (flat == nullptr) {
    throw ConfigError(
        "offload_states",
        "the state of an optimizer of torch::optim cannot be moved; prepare one of "
        "lockstep::optim, or remove kOptimStates from `include`");
  }
  for (const at::Tensor& parameter : optimizer.parameters()) {
    const auto fields = flat->state_of(parameter).fields;
    memory.insert(memory.end(), fields.begin(), fields.end());
  }
}

/// Captured graphs contain the addresses of the states, whose memory is freed.
void refuse_graphs(const Optimizer& optimizer) {
  for (const auto& group : optimizer.inner().param_groups()) {
    const auto* options = dynamic_cast<const optim::CapturableOptions*>(&group.options());
    if (options != nullptr && options->capturable()) {
      throw ConfigError(
          "offload_states",
          "optimizer states cannot be moved if captured graphs contain their addresses; got an "
          "optimizer with capturable true; set capturable to false, or do not offload");
    }
  }
}

void check_options(const OffloadStatesOptions& options, const PreparedObjects& objects) {
  if (options.device == OffloadDevice::kNvme) {
    throw ConfigError(
        "offload_states",
        "offload_states() moves states to host memory only; got device kNvme, expected kCpu; to "
        "offload to files, set offload_optimizer.device when the run begins");
  }
  const std::optional<ZeroPlugin>& zero = objects.context.options.zero;
  if (zero && zero->offload_param.device != OffloadDevice::kNone) {
    throw ConfigError(
        "offload_states",
        "offload_states() cannot be combined with offload_param, which already keeps parameters "
        "and optimizer state off the device; use one of them");
  }
  if (objects.optimizers.empty()) {
    throw ConfigError(
        "offload_states", "no optimizer is prepared; prepare one with its model first");
  }
}

}  // namespace

void StateOffloader::offload(const OffloadStatesOptions& options) {
  if (options.device == OffloadDevice::kNone) {
    log_warning("offload_states: device is kNone, so nothing is moved");
    return;
  }
  check_options(options, objects_);
  const at::Device device = objects_.context.device;
  if (!device.is_cpu()) {
    for (const Optimizer& optimizer : objects_.optimizers) {
      refuse_graphs(optimizer);
    }
    at::accelerator::synchronizeDevice(device.index());  // Side streams may still read the states.
  }
  const auto wanted = [&](OffloadStateType type) {
    return !offloaded_.contains(type) && (!options.include || options.include->contains(type));
  };
  auto memory = memory_of_states(wanted(OffloadStateType::kOptimStates));
  for (const OffloadStateType type :
       {OffloadStateType::kOptimStates,
        OffloadStateType::kHpParams,
        OffloadStateType::kLpParams,
        OffloadStateType::kLpGrads,
        OffloadStateType::kContiguousGradBuffer}) {
    if (wanted(type)) {
      offloaded_.emplace(
          type, offload::OffloadedStorage(memory[type], options.pin_memory, options.non_blocking));
    }
  }
  step_.set_offloaded(!offloaded_.empty());
}

std::map<OffloadStateType, std::vector<at::Tensor>> StateOffloader::memory_of_states(
    bool with_optimizers) const {
  std::map<OffloadStateType, std::vector<at::Tensor>> memory;
  if (with_optimizers) {
    for (const Optimizer& optimizer : objects_.optimizers) {
      add_optimizer_state(optimizer, memory[OffloadStateType::kOptimStates]);
    }
  }
  if (objects_.sharding) {
    objects_.sharding->finish_parameter_use();  // Frees unsharded units, as before an update.
    zero::Sharding::Memory own = objects_.sharding->memory();
    memory[OffloadStateType::kLpParams] = std::move(own.parameters);
    memory[OffloadStateType::kHpParams] = std::move(own.masters);
    memory[OffloadStateType::kLpGrads] = std::move(own.gradients);
    return memory;
  }
  for (const PreparedModel& model : objects_.models) {
    for (const NamedTensor& item : model.parameters()) {
      memory[OffloadStateType::kLpParams].push_back(item.tensor);
      memory[OffloadStateType::kLpGrads].push_back(item.tensor.grad());
    }
  }
  return memory;
}

void StateOffloader::reload(bool non_blocking) {
  while (!offloaded_.empty()) {
    const auto first = offloaded_.begin();
    first->second.reload(non_blocking);
    offloaded_.erase(first);
  }
  step_.set_offloaded(false);
}

void StateOffloader::loss_given(const GivenLoss& /*given*/) {
  if (offloaded_.contains(OffloadStateType::kLpParams) ||
      offloaded_.contains(OffloadStateType::kHpParams) ||
      offloaded_.contains(OffloadStateType::kLpGrads)) {
    step_.refuse_offloaded("backward");
  }
}

void StateOffloader::forget() {
  if (const auto parameters = offloaded_.find(OffloadStateType::kLpParams);
      parameters != offloaded_.end()) {
    parameters->second.reload(/*non_blocking=*/false);
  }
  offloaded_.clear();
  step_.set_offloaded(false);
}

}  // namespace lockstep::internal
