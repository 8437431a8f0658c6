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

/// One call of a rule that needs full parameters, while ranks own shard slices of them. It
/// describes all updated parameters, equally on every rank, and has this rank's slices. Every rank
/// calls the rule, including one without slices.
struct ShardedRuleCall {
  Group ranks;
  std::vector<const flat::ShardBounds*> full_parameters;
  std::vector<size_t> full_index;  ///< [tensor of `slices`] Index of the full parameter, ascending.
  RuleCall slices;                 ///< 1-D; no tensors if this rank has none.
  at::TensorOptions options;       ///< The slices', on every rank.

  const flat::ShardBounds& full_parameter(size_t slice) const {
    return *full_parameters[full_index[slice]];
  }
};

/// Assigns an owner to each full parameter: ranks get nearly equal shares of `costs`, the largest
/// first. Among ranks with the least work the one with most of the parameter is chosen.
std::vector<int> owners_of(
    const std::vector<const flat::ShardBounds*>& full_parameters,
    const std::vector<double>& costs,
    int ranks);

/// A computation on full tensors, each on one rank.
struct FullUpdate {
  std::vector<double> costs;  ///< [parameter] In any unit; the same on all ranks.
  at::ScalarType result;      ///< The dtype of the result of `compute`.
  /// Returns the input of a slice: with its length, in the call's dtype.
  std::function<at::Tensor(size_t slice)> input;
  /// Computes the result of a full tensor, contiguous with its parameter's shape; the same number
  /// of elements.
  std::function<at::Tensor(const at::Tensor& full)> compute;
  /// Applies the result of a slice, 1-D.
  std::function<void(size_t slice, const at::Tensor& result)> apply;
};

/// Gathers inputs on the owner of each full tensor, computes its result there, and returns slices
/// of the results to their ranks. Collective.
///
/// It works in rounds of at least as many tensors as ranks, and of 25 MiB a rank or more, with two
/// all-to-alls each. Their parts are as long as the largest one of any pair of ranks; a rank sends
/// itself nothing. Memory of a round: this rank's full tensors, and both sides of one all-to-all.
void update_on_owners(const ShardedRuleCall& call, const FullUpdate& todo);

}  // namespace lockstep::optim
