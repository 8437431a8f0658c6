// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep::zero {

/// An averaging reduce-scatter of values that are sent in 4 bits (qgZ).
///
/// A ring would round again in every step; here each element is rounded once a hop. Every rank
/// sends each rank of its host the elements for all hosts' ranks of that local rank. They are
/// averaged there in float32, rounded again, and sent to the ranks of equal local rank on the other
/// hosts. With one host there is one hop.
///
/// Between hosts a rank sends (H-1)/N of `gradients`, for H hosts and N ranks, at half a byte an
/// element and 4 bytes a block of 512. Memory: during the first hop twice the gradients in 4 bits.
/// Not thread-safe. After: Wang et al., "ZeRO++", arXiv:2306.10209, section 3.3.
class QuantizedReduction {
 public:
  /// Starts the first hop. `gradients`: 1-D, rank r's part at position r; not needed afterwards.
  /// Rank r is the (r % within.size())-th of its host, and `between` holds hosts in their order.
  /// Collective.
  QuantizedReduction(Group within, Group between, const at::Tensor& gradients);

  /// Starts the second hop if the first is done, or, with `wait`, after waiting for it. Returns
  /// whether it was started. Call it in the order of construction, on every rank.
  bool advance(bool wait);
  /// Returns whether `finish` would return at once.
  bool done() const { return advanced_ && pending_.done(); }
  /// `average`: this rank's part. Throws CommError.
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
