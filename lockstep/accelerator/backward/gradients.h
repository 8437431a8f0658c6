// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/backward/gradient_scope.h"
#include "lockstep/accelerator/backward/unprepared_update_check.h"
#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"

namespace lockstep {

/// Changes the gradients of prepared models between backward and update: scales, clips, drops them.
/// Not thread-safe.
class Gradients {
 public:
  Gradients(PreparedObjects& objects, LoopState& loop, UnpreparedUpdateCheck& update_check)
      : objects_(objects), loop_(loop), update_check_(update_check) {}

  /// Multiplies all gradients of this process.
  void scale(double factor);
  /// Drops all gradients.
  void clear();
  /// See Accelerator::unscale_gradients.
  void unscale();
  void unscale(const Optimizer& optimizer);
  /// See Accelerator::clip_grad_norm_ and clip_grad_value_.
  at::Tensor clip_norm(
      const std::vector<at::Tensor>& parameters, double max_norm, double norm_type);
  void clip_value(const std::vector<at::Tensor>& parameters, double clip_value);
  /// Returns the norms of the last clip_norm.
  const GradientNorms& norms() const { return norms_; }
  void forget_norms() { norms_ = {}; }
  /// See Accelerator::parameters_without_gradient.
  std::vector<std::string> parameters_without_gradient() const;

 private:
  void unscale_optimizers_of(const std::vector<at::Tensor>& parameters);

  PreparedObjects& objects_;
  LoopState& loop_;
  UnpreparedUpdateCheck& update_check_;
  GradientNorms norms_;
};

}  // namespace lockstep
