// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Tells when gradients arrive: the one place that touches autograd's internals.
///
/// `on_gradient(i)` is called once in every backward pass that reaches tensor i, after its gradient
/// has been accumulated into `grad`, on the thread autograd runs on (the caller of backward for CPU
/// tensors). What it throws comes out of backward(). It hooks the node that accumulates the
/// gradient, not the tensor's single post-accumulate slot, so it lives beside hooks of Python or of
/// another library.
class BackwardHooks {
 public:
  /// Every tensor must be a leaf that requires grad.
  BackwardHooks(const std::vector<at::Tensor>& tensors, std::function<void(size_t)> on_gradient);
  /// Removes the hooks.
  ~BackwardHooks();
  BackwardHooks(const BackwardHooks&) = delete;
  BackwardHooks& operator=(const BackwardHooks&) = delete;

  /// A number for the backward pass under way; none two at a time have the same.
  static int current_backward();

  /// Runs `callback` when the backward pass under way has computed all gradients; what it throws
  /// comes out of backward(). In the order in which they were asked for. Only to be called from
  /// within `on_gradient`, or a tensor's hook.
  static void at_end_of_backward(std::function<void()> callback);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
