// SPDX-License-Identifier: Apache-2.0
// Which device this process computes on.
#include <optional>

#include <ATen/DeviceAccelerator.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/setup/either_variable.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep {

void Accelerator::choose_device() {
  State& state = *state_;
  const bool cpu =
      state.options.cpu.value_or(either_boolean(Environment::process(), "USE_CPU").value_or(false));
  const auto type = cpu ? std::nullopt : at::getAccelerator();
  const int count = type ? at::accelerator::deviceCount() : 0;
  if (count == 0) {
    return;
  }
  if (state.options.shared_parameters) {
    throw ConfigError(
        "accelerator",
        "shared_parameters is for processes that train on CPUs; leave it out, or set cpu");
  }
  const int index = state.world.local_rank % count;
  state.device = at::Device(*type, static_cast<at::DeviceIndex>(index));
  at::accelerator::setDeviceIndex(state.device.index());
}

}  // namespace lockstep
