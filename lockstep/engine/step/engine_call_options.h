// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

namespace lockstep {

/// Options of Engine::backward.
struct EngineBackwardOptions {
  /// Keeps the graph for another backward through it.
  bool retain_graph = false;
  /// Divides the loss by the micro-steps in an update.
  bool scale_wrt_gas = true;
};

/// Options of Engine::step; DeepSpeed's lr_kwargs.
struct EngineStepOptions {
  /// The metric of schedule::reduce_on_plateau: the same on all ranks.
  std::optional<double> metric = std::nullopt;
};

}  // namespace lockstep
