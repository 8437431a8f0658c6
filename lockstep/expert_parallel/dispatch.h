// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/expert_parallel/router.h"

namespace lockstep::expert_parallel {

struct ExchangePlan;

/// Sends tokens to the ranks of their experts, and the experts' outputs back.
///
/// Rank r of the group's N ranks has the experts [r * E/N, (r+1) * E/N). `dispatch` returns the
/// rows that this rank's experts compute, expert by expert, and within one by rank, then by token.
/// The order of all sums is that of one process. Dropped choices are not sent. A rank may have no
/// tokens, and an expert none.
///
/// Collective: all ranks must construct it, call `dispatch` and `combine` once each, and run the
/// backward of both, also without tokens. Gradients of gradients work.
///
/// Cost on N > 1 ranks: the constructor gathers N * E int64 on the host, for which a GPU must
/// finish its work. `dispatch`, `combine`, and the backward of each are one all_to_all of N * M
/// rows, where M is the largest number of rows from one rank to another. Messages of the exact
/// sizes would send less if ranks differ much, but each needs a handshake and two threads for each
/// peer, and those of device tensors are copied through the host's memory. Padding costs nothing
/// when tokens are balanced, which the auxiliary losses see to.
///
/// Not thread-safe. Modelled on Megatron-LM's `MoEAlltoAllTokenDispatcher`.
class ExpertDispatch {
 public:
  /// Throws ConfigError if the group's size does not divide the number of experts.
  ExpertDispatch(const Group& group, const Routing& routing);

  /// `tokens`: [T, hidden]. Returns [R, hidden], where R is the number of rows of this rank.
  at::Tensor dispatch(const at::Tensor& tokens) const;
  /// `outputs`: [R, hidden], the experts' outputs in dispatch's order. Returns [T, hidden]: the sum
  /// of each token's outputs, times their weights, computed in the wider dtype of both, and
  /// returned in that of `outputs`. A token without experts gets zeros.
  at::Tensor combine(const at::Tensor& outputs) const;

  /// The rows of each expert of this rank, [E / N].
  const std::vector<int64_t>& rows_of_experts() const { return rows_of_experts_; }

 private:
  int64_t tokens_;
  at::Tensor token_of_row_;  ///< int64: the token of each row that this rank sends.
  at::Tensor weights_;       ///< Their weights.
  std::shared_ptr<const ExchangePlan> plan_;  ///< Null on one rank.
  std::vector<int64_t> rows_of_experts_;
  at::Tensor to_experts_;  ///< int64: the order by experts of received rows; undefined if they are.
  at::Tensor to_ranks_;    ///< The inverse.
};

/// Returns `tensor`, whose gradient is multiplied by `factor`. Cost: one pass in backward.
at::Tensor scale_gradient(const at::Tensor& tensor, double factor);

}  // namespace lockstep::expert_parallel
