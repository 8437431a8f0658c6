// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <set>

#include "lockstep/sync/join.h"
#include "lockstep/zero_options/offload.h"

namespace lockstep {

/// Options of Accelerator::backward.
struct BackwardOptions {
  /// Keeps the graph for another backward through it.
  bool retain_graph = false;
  /// Called on an autograd thread when this process's gradients are computed, before the rest of
  /// their averaging is awaited. Not called if the loss depends on nothing.
  std::function<void()> computed = nullptr;
};

/// Options of Accelerator::join_uneven_inputs.
struct JoinUnevenInputs {
  /// Replaces AcceleratorOptions::even_batches for the loaders of this loop.
  std::optional<bool> even_batches = std::nullopt;
  JoinOptions join = {};
};

/// The states that Accelerator::offload_states moves; DeepSpeed's enum of that name.
enum class OffloadStateType {
  kOptimStates,          ///< The optimizer's state.
  kHpParams,             ///< fp32 masters of 16-bit parameters. Others have none.
  kLpParams,             ///< Parameters; in stage 3 this process's shard, unless kHpParams.
  kLpGrads,              ///< Gradients that no update has used yet.
  kContiguousGradBuffer  ///< Gradient buffers, which exist during backward only.
};

/// Options of Accelerator::offload_states.
struct OffloadStatesOptions {
  /// Not set: all states.
  std::optional<std::set<OffloadStateType>> include = std::nullopt;
  /// kNone does nothing, with a warning; kNvme is refused, as in DeepSpeed.
  OffloadDevice device = OffloadDevice::kCpu;
  /// Use page-locked memory, from a CUDA device.
  bool pin_memory = true;
  /// With page-locked memory: return before the copies are done; later device work waits for them.
  bool non_blocking = false;
};

}  // namespace lockstep
