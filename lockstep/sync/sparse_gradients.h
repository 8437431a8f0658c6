// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep {

/// Averages sparse gradients, such as those of an Embedding with sparse=true, over the ranks.
///
/// Holds the sparse gradients of this rank from the start of an averaging to its end. The ranks
/// gather each other's rows and their indices, so that the result is sparse, too: the sum of all
/// ranks' rows, divided by the number of ranks, in rank order.
///
/// Cost: one small all_reduce a backward, and three all_gathers a sparse parameter; N times the
/// largest number of rows of a rank. Used by Reducer.
class SparseGradients {
 public:
  /// `parameters`, whose indices name them below, must outlive this.
  explicit SparseGradients(const NamedTensors& parameters)
      : parameters_(parameters), own_(parameters.size()) {}

  /// Takes the gradient of a parameter, and leaves `grad` undefined.
  void take(size_t parameter);
  /// Returns whether this rank holds any.
  bool any() const;
  /// Averages the held gradients and puts them into `grad`. `has_dense`: by parameter, whether this
  /// rank has a dense gradient. Returns whether each parameter is sparse on any rank. Throws
  /// ConfigError if a parameter's gradients are sparse on one rank and dense on another, and for a
  /// gradient with more than one sparse dimension. Collective.
  std::vector<bool> average(Group& group, const std::vector<bool>& has_dense);
  /// Drops the held gradients.
  void clear();

 private:
  at::Tensor averaged(Group& group, size_t parameter) const;

  const NamedTensors& parameters_;
  std::vector<at::Tensor> own_;  ///< [parameter] Undefined without a sparse gradient.
};

}  // namespace lockstep
