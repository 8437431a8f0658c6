// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "lockstep/zero_options/offload.h"
#include "lockstep/zero_options/zero_plugin.h"

namespace lockstep {

/// The sharding options of Accelerate's DeepSpeedPlugin. For a ds_config.json use `initialize`,
/// DeepSpeed's engine.
struct DeepSpeedPlugin {
  /// 0: data parallel.
  int zero_stage = 2;
  /// Overrides AcceleratorOptions::gradient_accumulation_steps.
  std::optional<int64_t> gradient_accumulation_steps = std::nullopt;
  /// See ZeroPlugin::offload_optimizer and offload_param.
  OffloadDevice offload_optimizer_device = OffloadDevice::kNone;
  OffloadDevice offload_param_device = OffloadDevice::kNone;
  std::filesystem::path offload_optimizer_nvme_path = {};
  std::filesystem::path offload_param_nvme_path = {};

  /// Throws ConfigError for an unknown stage. None: data parallel.
  std::optional<ZeroPlugin> zero() const;
};

}  // namespace lockstep
