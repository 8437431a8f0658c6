// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/backward/gradient_norms.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"

namespace lockstep::internal {

/// Changes the gradients of prepared models between backward and update: scales, clips, drops them.
class Gradients {
 public:
  Gradients(PreparedObjects& objects, TrainingStep& step) : objects_(objects), step_(step) {}

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
  std::vector<at::Tensor> held(const std::vector<at::Tensor>& parameters) const;
  at::Tensor norm_over_replicas(
      const std::vector<at::Tensor>& parameters, const at::Tensor& own, double norm_type) const;
  at::Tensor norm_over_ranks(
      const std::vector<at::Tensor>& parameters, const at::Tensor& own, double norm_type) const;

  PreparedObjects& objects_;
  TrainingStep& step_;
  GradientNorms norms_;
};

}  // namespace lockstep::internal
