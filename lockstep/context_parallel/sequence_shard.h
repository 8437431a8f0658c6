// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Selects the positions of a sequence that each rank has.
enum class SequenceLayout {
  kContiguous,  ///< Rank r of P has positions r*T/P to (r+1)*T/P - 1.
  /// The sequence has 2P chunks, and rank r has chunks r and 2P-1-r. Under a causal mask all ranks
  /// then have equal work in ring attention.
  kZigzag
};

/// Describes how a sequence of `length` positions is divided over the ranks of a group.
///
/// Every rank has length/ranks positions, in increasing order. A group of one has all of them. All
/// ranks must construct it with the same arguments but `rank`. Immutable and thread-safe. The
/// zigzag order is that of Zhu's ring-flash-attention and Llama 3's training.
class SequenceShard {
 public:
  /// Throws ConfigError if `length` is not a positive multiple of length_multiple(), with the
  /// length to pad to, and for a `rank` outside of the group.
  SequenceShard(
      int64_t length, int rank, int ranks, SequenceLayout layout = SequenceLayout::kContiguous);
  /// Takes rank and size from `group`.
  SequenceShard(
      int64_t length, const Group& group, SequenceLayout layout = SequenceLayout::kContiguous);

  /// Returns the number that must divide the length: `ranks`, or 2 * `ranks` for kZigzag.
  static int64_t length_multiple(int ranks, SequenceLayout layout);
  /// Returns `length`, rounded up to a multiple of length_multiple().
  static int64_t padded_length(int64_t length, int ranks, SequenceLayout layout);

  int64_t length() const { return length_; }
  /// Returns the number of this rank's positions.
  int64_t local_length() const { return length_ / ranks_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  SequenceLayout layout() const { return layout_; }

  /// Returns this rank's positions, int64 (length/ranks), for position embeddings.
  at::Tensor positions(at::Device device = at::kCPU) const;

  /// Returns this rank's part of `full` along `dim`, which has `length` elements. Local and
  /// differentiable. A view if the layout is contiguous. Throws ConfigError for another size.
  at::Tensor shard_sequence(const at::Tensor& full, int64_t dim) const;
  /// Concatenates the parts of all ranks along `dim`, in the order of positions. The reverse of
  /// shard_sequence(). Collective; cost: one all_gather.
  ///
  /// The gradient is that of the sum of all ranks' losses: backward adds the ranks' gradients by a
  /// reduce_scatter, so all ranks must run it. Throws ConfigError for a part of another size, and
  /// in a backward with create_graph.
  at::Tensor unshard_sequence(const at::Tensor& part, int64_t dim, const Group& group) const;

  /// Reorders `ranks_in_order`, the parts of ranks 0, 1, ... along `dim`, by position. Local and
  /// differentiable.
  at::Tensor to_sequence_order(const at::Tensor& ranks_in_order, int64_t dim) const;
  /// Does the reverse of to_sequence_order().
  at::Tensor to_rank_order(const at::Tensor& sequence, int64_t dim) const;

  /// Throws ConfigError, in the name of `where`, unless `group` has this rank and number of ranks.
  void expect_group(const char* where, const Group& group) const;

 private:
  /// Returns the chunks of the sequence in the order in which ranks 0, 1, ... have them.
  std::vector<int64_t> chunks_in_rank_order() const;

  int64_t length_;
  int rank_;
  int ranks_;
  SequenceLayout layout_;
};

}  // namespace lockstep
