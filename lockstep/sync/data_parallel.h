// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/flat/layout.h"
#include "lockstep/sync/comm_hook.h"
#include "lockstep/sync/gradient_sync.h"
#include "lockstep/sync/join.h"

namespace lockstep {

struct DataParallelOptions {
  /// Largest bucket. Larger: fewer messages; smaller: more of them travel while backward still
  /// runs.
  int64_t cap_bytes = int64_t{25} << 20;
  /// Largest first bucket, small so that the first message leaves early.
  int64_t first_cap_bytes = int64_t{1} << 20;
  /// Whether buffers (BatchNorm's running statistics) follow rank 0's.
  bool broadcast_buffers = true;
  /// How gradients are compressed on their way.
  CommHookOptions comm_hook = {};
};

class Reducer;

/// Averages gradients across `group` while backward still runs.
///
/// On construction all ranks must hold the same names, shapes and dtypes (else ConfigError); then
/// rank 0's parameters and buffers are copied to all. From then on gradients live as views in flat
/// buckets, in reverse order of registration; a full bucket is averaged at once, and buckets start
/// in index order on every rank, so control flow may differ between ranks.
///
/// - Gradients may be zeroed in place or dropped (`mutable_grad().reset()`, what torch's zero_grad
///   does): the next backward's lie in the buckets again. Dropping is the faster: autograd then
///   hands its result over, which is copied once, where zeroing and adding passes over the memory
///   three times more.
/// - A parameter that took no part on this rank counts as zero; one that took part on no rank
///   keeps an undefined `grad`, so that optimizers leave it alone, as in one process.
/// - After a backward that only accumulates, what took no part on this rank since it was zeroed has
///   an undefined `grad`: whoever steps by this rank's gradients alone leaves it alone as well.
/// - Frozen parameters (requires_grad false at construction) are not touched; one that requires
///   gradients later is a ConfigError at the next backward, since nothing would average them.
///   Others may be frozen for a while. A parameter under two names is reduced once.
/// - Buffers are rank 0's again after every backward that averaged: the next forward on every rank
///   starts from the same ones, as with PyTorch's DDP, which broadcasts them before it.
/// - Any backward that reaches the model works, `loss.backward()` too. Only one that may reach none
///   of its parameters on this rank needs `begin_backward` and `finish_backward` around it.
///
/// Sends 2(N-1)/N * gradient bytes a step and rank (ring), less with a comm hook (comm_hook.h).
/// Memory: the gradients themselves. Ranks with differing numbers of batches: run_joined (join.h).
/// A group of one: no hooks, no buckets, nothing happens.
///
/// Thread safety: none; one backward at a time. After: Li et al., "PyTorch Distributed", VLDB 2020.
class DataParallel final : public GradientSync {
 public:
  /// `narrow`: parameters whose gradients travel in 16 bits, as with a comm hook of that type, in
  /// buckets of their own; not with a comm hook, of which this is a part.
  DataParallel(
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      Group group,
      DataParallelOptions options = {},
      const flat::CommDtypes& narrow = {});
  /// Removes the hooks; gradients stay as they are. Never communicates.
  ~DataParallel() override;

  void begin_backward() override;
  void finish_backward() override;
  void abandon_backward() noexcept override;
  void set_sync(bool sync) override;
  void check_alive() const override;
  /// While true, nothing travels, whatever `set_sync` says: for strategies that average parameters
  /// instead of gradients.
  void set_local(bool local);

  /// What the comm hook remembers, for a checkpoint; each rank's own. Empty (iteration 0, no
  /// tensors) without compression and in a group of one.
  CommHookState hook_state() const;
  /// See CommHook::check_state and load_state. Both do nothing in a group of one, where nothing is
  /// compressed.
  void check_hook_state(const CommHookState& state) const;
  void load_hook_state(const CommHookState& state);

  /// How gradients travel, where there is more than one rank.
  CommHookType comm_hook() const { return comm_hook_; }
  /// Number of buckets, for tests and tuning.
  size_t bucket_count() const;

 private:
  friend void run_joined(
      const std::vector<std::shared_ptr<DataParallel>>& models,
      const std::function<void()>& body,
      JoinOptions options,
      const std::function<std::vector<at::Tensor>()>& more);

  CommHookType comm_hook_;
  std::vector<at::Tensor> everything_;  ///< Parameters and buffers, frozen ones too.
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace lockstep
