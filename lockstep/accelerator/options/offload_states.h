// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <set>

#include "lockstep/base/offload_device.h"

namespace lockstep {

/// What Accelerator::offload_states moves; DeepSpeed's class of that name.
enum class OffloadStateType {
  kOptimStates,          ///< The optimizer's state.
  kHpParams,             ///< fp32 masters of parameters in 16 bits. Others are their own masters.
  kLpParams,             ///< Parameters; in stage 3 this process's part of them, unless kHpParams.
  kLpGrads,              ///< Gradients that no update has used yet.
  kContiguousGradBuffer  ///< Room for gradients under way, which there is in backward only.
};

/// How Accelerator::offload_states works.
struct OffloadStatesOptions {
  /// Not set: all of it.
  std::optional<std::set<OffloadStateType>> include = std::nullopt;
  /// kNone does nothing, with a warning; kNvme is refused, as in DeepSpeed.
  OffloadDevice device = OffloadDevice::kCpu;
  /// To page-locked memory, from a CUDA device.
  bool pin_memory = true;
  /// From there, return before the copies are done; what the device does next comes behind them.
  bool non_blocking = false;
};

}  // namespace lockstep
