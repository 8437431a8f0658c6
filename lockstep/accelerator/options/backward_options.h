// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace lockstep {

struct BackwardOptions {
  /// Keeps the graph for another backward through it.
  bool retain_graph = false;
  /// Called on an autograd thread when this process's gradients are computed, before the rest of
  /// their averaging is awaited. Not called if the loss depends on nothing.
  std::function<void()> computed = nullptr;
};

/// Callbacks of a backward that the program calls itself. Each is called on an autograd thread,
/// once a backward; an exception propagates out of the backward. Each may be empty.
struct BackwardSteps {
  std::function<void()> begins = nullptr;    ///< Before the differentiation.
  std::function<void()> computed = nullptr;  ///< As BackwardOptions::computed.
  std::function<void()> ends = nullptr;      ///< After averaging, or its failure.
};

}  // namespace lockstep
