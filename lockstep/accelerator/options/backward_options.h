// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace lockstep {

/// Options of Accelerator::backward.
struct BackwardOptions {
  /// Keeps the graph for another backward through it.
  bool retain_graph = false;
  /// Called on an autograd thread when this process's gradients are computed, before the rest of
  /// their averaging is awaited. Not called if the loss depends on nothing.
  std::function<void()> computed = nullptr;
};

}  // namespace lockstep
