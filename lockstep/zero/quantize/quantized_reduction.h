// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep::zero {

/// An averaging reduce-scatter of values that are sent in 4 bits (qgZ).
///
/// Each element is rounded once per hop; a ring would round it in every step. In the first hop
/// every rank sends each rank of its host the elements for all ranks of that local rank. The
/// receiver averages them in float32 and rounds the average. In the second hop it sends averages to
/// the ranks of equal local rank on the other hosts. One host needs only the first hop.
///
/// Between hosts a rank sends (H-1)/N of `gradients`, for H hosts and N ranks, at half a byte an
/// element and 4 bytes per block of 512. Memory: during the first hop twice the gradients in 4
/// bits. Not thread-safe. Modelled on Wang et al., "ZeRO++", arXiv:2306.10209, section 3.3.
class QuantizedReduction {
 public:
  /// Starts the first hop. `gradients`: 1-D, rank r's part at position r; not needed afterwards.
  /// Rank r is the (r % within.size())-th of its host, and `between` holds hosts in their order.
  /// Collective.
  QuantizedReduction(Group within, Group between, const at::Tensor& gradients);

  /// Starts the second hop if the first is done; with `wait`, waits for the first. Returns whether
  /// the second hop has started. Call it in the order of construction, on every rank.
  bool advance(bool wait);
  /// Returns whether `finish` would return at once.
  bool done() const { return advanced_ && pending_.done(); }
  /// Writes this rank's part of the averages to `average`. Throws CommError.
  void finish(const at::Tensor& average);

 private:
  Group within_;
  Group between_;
  int64_t part_;
  int64_t wire_;  ///< Bytes of one part.
  at::TensorOptions bytes_;
  bool advanced_ = false;
  Pending pending_;
};

}  // namespace lockstep::zero
