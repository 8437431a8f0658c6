// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Reports the arrival of gradients.
///
/// Calls `on_gradient(i)` once in every backward that reaches tensor i, after its gradient has been
/// accumulated into `grad`. The call is on autograd's thread (the caller of backward for CPU
/// tensors). An exception propagates out of backward(). It hooks the node that accumulates the
/// gradient, not the tensor's single post-accumulate hook, so hooks of Python or other libraries
/// still work.
class BackwardHooks {
 public:
  /// Every tensor must be a leaf that requires grad. `before_gradient(i)`, if given, is called
  /// before the gradient of tensor i is accumulated.
  BackwardHooks(
      const std::vector<at::Tensor>& tensors,
      std::function<void(size_t)> on_gradient,
      std::function<void(size_t)> before_gradient = nullptr);
  /// Removes the hooks.
  ~BackwardHooks();
  BackwardHooks(const BackwardHooks&) = delete;
  BackwardHooks& operator=(const BackwardHooks&) = delete;

  /// Returns the number of the running backward; concurrent ones have different numbers.
  static int current_backward();

  /// Runs `callback` when the running backward has computed all gradients; an exception propagates
  /// out of backward(). Callbacks run in order of registration. Call it only within `on_gradient`,
  /// or a tensor's hook.
  static void at_end_of_backward(std::function<void()> callback);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
