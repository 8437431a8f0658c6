// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep::zero {

/// A reduce-scatter that averages, of values that travel in 4 bits (qgZ).
///
/// In place of a ring, whose every step would round once more, each element is rounded once a hop:
/// every rank sends each rank of its host what all hosts' ranks of that local rank are to have,
/// which is averaged there in float32, rounded again, and sent to the ranks of equal local rank on
/// the other hosts. With one host there is one hop.
///
/// Between hosts a rank sends (H-1)/N of `gradients`, of H hosts and N ranks, at half a byte an
/// element and 4 bytes a block of 512. Memory: while the first hop travels twice the gradients in 4
/// bits. Thread safety: none. After: Wang et al., "ZeRO++", arXiv:2306.10209, section 3.3.
class QuantizedReduction {
 public:
  /// Starts the first hop. `gradients`: 1-D, rank r's part r-th; not needed after. Rank r is the
  /// (r % within.size())-th of its host, and `between` holds hosts in their order. Collective.
  QuantizedReduction(Group within, Group between, const at::Tensor& gradients);

  /// Starts the second hop, if the first is through, or, with `wait`, once it is. Returns whether
  /// it has been. To be called for reductions in the order of their construction, on every rank.
  bool advance(bool wait);
  /// Whether `finish` would return at once.
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
