// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace lockstep {

struct BackwardOptions {
  /// Keep the graph, for another backward through it.
  bool retain_graph = false;
  /// Called when this process's gradients are computed, before the rest of their averaging is
  /// waited for; on a thread of autograd. Not where the loss depends on nothing.
  std::function<void()> computed = nullptr;
};

/// Who wants to know where a backward stands that the program calls itself. All are called on
/// threads of autograd, once a backward; what they throw comes out of it. None need be there.
struct BackwardSteps {
  std::function<void()> begins = nullptr;    ///< Before anything is differentiated.
  std::function<void()> computed = nullptr;  ///< As BackwardOptions::computed.
  std::function<void()> ends = nullptr;      ///< Averaged, where it averages, or failed to.
};

}  // namespace lockstep
