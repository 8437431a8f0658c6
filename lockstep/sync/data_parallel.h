// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/sync/comm_hook/comm_hook.h"
#include "lockstep/sync/gradient_sync.h"
#include "lockstep/sync/join.h"

namespace lockstep {

struct DataParallelOptions {
  /// Largest bucket in bytes. Larger: fewer messages; smaller: more overlap with backward.
  int64_t cap_bytes = int64_t{25} << 20;
  /// Largest first bucket in bytes, small so that the first message starts early.
  int64_t first_cap_bytes = int64_t{1} << 20;
  /// Broadcasts rank 0's buffers (BatchNorm's running statistics).
  bool broadcast_buffers = true;
  /// Compression of gradients for communication.
  CommHookOptions comm_hook = {};
};

class Reducer;

/// Averages gradients across `group` while backward still runs.
///
/// On construction all ranks must have the same names, shapes and dtypes (else ConfigError); rank
/// 0's parameters and buffers are copied to all. Gradients are views in flat buckets, in reverse
/// order of registration. A full bucket is averaged at once, and buckets start in index order on
/// every rank, so control flow may differ between ranks.
///
/// - Gradients may be zeroed in place or dropped (`mutable_grad().reset()`, as torch's zero_grad
///   does): the next backward writes into the buckets again. Dropping is faster: autograd then
///   returns a new tensor, which is copied once. Zeroing and adding reads and writes the memory
///   three more times.
/// - A parameter without a gradient on this rank counts as zero. A parameter that has a gradient on
///   no rank keeps an undefined `grad`, so that optimizers skip it, as in one process.
/// - After a backward that only accumulates, a parameter without a gradient on this rank has an
///   undefined `grad`, so that an optimizer that steps by local gradients skips it as well.
/// - Frozen parameters (requires_grad false at construction) are ignored. A frozen parameter that
///   requires gradients later is a ConfigError at the next backward, since its gradient would not
///   be averaged. Trained parameters may be frozen temporarily. A parameter under two names is
///   reduced once.
/// - Rank 0's buffers are broadcast after every backward that averaged: the next forward on every
///   rank starts with equal buffers, as with PyTorch's DDP, which broadcasts them before it.
/// - Any backward that reaches the model works, including `loss.backward()`. Only a backward that
///   may reach no parameter on this rank needs `begin_backward` and `finish_backward` around it.
///
/// Sends 2(N-1)/N * gradient bytes per step and rank (ring), less with a comm hook (comm_hook.h).
/// Memory: the gradients. For different numbers of batches see Join (join.h). A group of one
/// has no hooks, no buckets and no communication.
///
/// Not thread-safe; one backward at a time. Modelled on Li et al., "PyTorch Distributed", VLDB
/// 2020.
class DataParallel final : public GradientSync {
 public:
  /// Copies rank 0's values to all ranks. `comm_dtypes`: parameters with 16-bit gradient
  /// communication, in separate buckets; cannot be combined with a comm hook. Throws ConfigError.
  /// Collective.
  DataParallel(
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      Group group,
      DataParallelOptions options = {},
      const flat::CommDtypes& comm_dtypes = {});
  /// Removes the hooks; gradients are unchanged. Never communicates.
  ~DataParallel() override;

  void begin_backward() override;
  void finish_backward() override;
  void abandon_backward() noexcept override;
  void set_sync(bool sync) override;
  void set_facts(RankFacts facts) override;
  bool has_gradients() const override;
  void check_alive() const override;
  /// While true, sends nothing, regardless of `set_sync`: for strategies that average parameters
  /// instead of gradients.
  void set_local(bool local);

  /// Returns the comm hook's state for a checkpoint, different on each rank. Empty (iteration 0, no
  /// tensors) without compression and in a group of one.
  CommHookState hook_state() const;
  /// See CommHook::check_state and load_state. Both do nothing in a group of one.
  void check_hook_state(const CommHookState& state) const;
  void load_hook_state(const CommHookState& state);

  /// The communication of gradients, with more than one rank.
  CommHookType comm_hook() const { return comm_hook_; }
  /// Number of buckets, for tests and tuning.
  size_t bucket_count() const;

 private:
  friend class Join;

  CommHookType comm_hook_;
  std::vector<at::Tensor> everything_;  ///< Parameters and buffers, including frozen ones.
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace lockstep
