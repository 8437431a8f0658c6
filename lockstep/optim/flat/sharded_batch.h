// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/shard_bounds.h"
#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// What one call of a rule that needs whole parameters works on where each of several ranks has a
/// slice of them: all that are updated, the same on every rank, and this rank's slices. Every rank
/// calls, also one without any slice.
struct ShardedBatch {
  Group ranks;
  std::vector<const flat::ShardBounds*> full_parameters;
  std::vector<size_t> full_index;  ///< [tensor of `slices`] Rising.
  Batch slices;                    ///< 1-D; no tensors where this rank has none.
  at::TensorOptions options;       ///< Of the slices, on every rank.

  const flat::ShardBounds& whole(size_t slice) const { return *full_parameters[full_index[slice]]; }
  int64_t begin(size_t slice) const { return whole(slice).begin(ranks.rank()); }
};

/// Who works on each of `wholes`: ranks get equal shares of `costs`, as near as dealing out the
/// dearest first brings it. Where several have least to do, whoever has most of it already.
std::vector<int> owners_of(
    const std::vector<const flat::ShardBounds*>& full_parameters,
    const std::vector<double>& costs,
    int ranks);

/// What is done to whole tensors, each on one rank.
struct FullUpdate {
  std::vector<double> costs;  ///< [whole] In any unit; the same on all ranks.
  at::ScalarType result;      ///< What `work` gives.
  /// What this rank adds of a slice: as long as it, in the batch's dtype.
  std::function<at::Tensor(size_t slice)> give;
  /// Of a whole, contiguous and shaped as its parameter: as many elements.
  std::function<at::Tensor(const at::Tensor& whole)> work;
  /// What comes back of a slice, 1-D.
  std::function<void(size_t slice, const at::Tensor& result)> take;
};

/// Brings slices together on the whole's owner, works there, and takes the results back to those
/// who gave. Collective.
///
/// Rounds of as many as there are ranks, and of 25 MiB a rank, or more. Two all-to-alls each, whose
/// parts are as long as what the busiest pair of ranks has for each other; a rank sends itself
/// nothing. Memory: of a round, what this rank owns, and both sides of one all-to-all.
void update_on_owners(const ShardedBatch& batch, const FullUpdate& todo);

}  // namespace lockstep::optim
