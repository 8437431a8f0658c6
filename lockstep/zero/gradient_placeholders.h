// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::zero {

/// Stands in `grad` of parameters whose gradients are stored elsewhere, in the ranks' shards.
///
/// A program that drops or zeroes a placeholder (Module::zero_grad, `p.grad = None`) drops the
/// gradient; the owner of this asks by `was_dropped`. Any other operation on a placeholder throws
/// ConfigError, because it would see or change nothing: torch's clipping, for instance. Assigning
/// another tensor is a ConfigError of `was_dropped`.
///
/// Cost: no memory, a comparison of pointers a parameter and call. Thread safety: calls for
/// different parameters may be concurrent.
class GradientPlaceholders {
 public:
  /// Throws ConfigError if other code in this process uses the dispatch key of FlatParamBuffer.
  explicit GradientPlaceholders(const NamedTensors& parameters);
  /// Removes the placeholders from the parameters.
  ~GradientPlaceholders();
  GradientPlaceholders(const GradientPlaceholders&) = delete;
  GradientPlaceholders& operator=(const GradientPlaceholders&) = delete;

  /// Puts the placeholder into `grad` of a parameter.
  void put(size_t parameter);
  /// Returns whether `put` was called since the last `remove`.
  bool is_put(size_t parameter) const;
  /// Returns whether the program has dropped or zeroed the gradient since `put`. Throws ConfigError
  /// if it has assigned another tensor.
  bool was_dropped(size_t parameter) const;
  /// Removes the placeholder, if `grad` still is one.
  void remove(size_t parameter);

 private:
  class Placeholder;
  std::vector<std::unique_ptr<Placeholder>> placeholders_;
};

/// Returns whether a gradient is a placeholder, or a view of one.
bool is_gradient_placeholder(const at::Tensor& gradient);

}  // namespace lockstep::zero
