// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero_options/deepspeed_plugin.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

std::optional<ZeroPlugin> DeepSpeedPlugin::zero() const {
  if (zero_stage < 0 || zero_stage > 3) {
    throw ConfigError(
        "deepspeed_plugin", fmt::format("zero_stage is {}; expected 0, 1, 2 or 3", zero_stage));
  }
  const bool offloads = offload_optimizer_device != OffloadDevice::kNone ||
                        offload_param_device != OffloadDevice::kNone;
  if (zero_stage == 0 && offloads) {
    throw ConfigError(
        "deepspeed_plugin",
        "stage 0 keeps everything on the device; got an offload device, expected none; offload "
        "the optimizer's state from stage 1 on, parameters in stage 3");
  }
  if (zero_stage == 0) {
    return std::nullopt;
  }
  ZeroPlugin zero{.stage = zero_stage};
  zero.offload_optimizer.device = offload_optimizer_device;
  zero.offload_optimizer.nvme_path = offload_optimizer_nvme_path;
  zero.offload_param.device = offload_param_device;
  zero.offload_param.nvme_path = offload_param_nvme_path;
  return zero;
}

}  // namespace lockstep
