// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"
#include "lockstep/zero/coordinator/param_coordinator.h"

namespace lockstep::zero {

/// Builds a model that no rank ever holds in full. A large tensor is full only during its
/// initialisation: the next tensor's creation shards it, and each rank keeps its shard of rank 0's
/// values.
///
/// Within an InitInterceptScope of this object, it shards floating-point tensors that operations
/// create without inputs (`torch::empty`) or from other tensors (`torch::randn(...) * 0.02`).
/// Tensors created in another way (operations with several results, from_blob) stay full until
/// `shard`. All ranks must build the same model. Sharding replaces the shards of the parameters
/// that it shards. Other tensors (a second model, buffers) are unsharded on all ranks when an
/// operation uses them, while this object or its successor from `release` lives; `make_full`
/// unshards tensors permanently.
///
/// Memory: 1/N of the model and its largest tensor, with the inputs of its computation. Each rank
/// sends 2 (N-1)/N of the model: a broadcast here, and an all-gather when Sharding takes it over.
/// Later changes of initial values send as much again. Not thread-safe. Modelled on DeepSpeed's
/// zero.Init.
class Init final : public InitInterceptor {
 public:
  /// Creates tensors on `device`. Uninitialized tensors are moved, too, so they must not be filled
  /// through pointers unless the device is the CPU. Tensors of less than `min_elements` stay full,
  /// on their device.
  Init(Group group, at::Device device, int64_t min_elements);
  ~Init() override;

  at::Tensor take(const at::Tensor& created, bool has_values) override;
  /// Shards those of `tensors` that are full and that `take` accepts, unless two share memory. They
  /// remain the same tensors. Collective.
  void shard(const std::vector<at::Tensor>& tensors);
  /// Shards the last created tensor, too, and drops shards of tensors that no rank references.
  /// Collective.
  void finish();
  /// Makes those of `tensors` that were built here full on all ranks, permanently. They remain the
  /// same tensors. Collective.
  void make_full(const std::vector<at::Tensor>& tensors);

  /// A sharded tensor for another ParamCoordinator, which treats writes to it as equal on all
  /// ranks.
  struct ReleasedUnit {
    std::unique_ptr<ShardedUnit> unit;
    std::string name;
  };
  /// Finishes, and returns the shards of all tensors that any rank references. They move to
  /// training's ParamCoordinator: ranks that serve one coordinator would never answer another. This
  /// object is empty afterwards and builds nothing more. Collective.
  std::vector<ReleasedUnit> release();
  /// Returns the largest number of elements that were unsharded at a time.
  int64_t max_unsharded_elements() const { return coordinator_->max_unsharded_elements(); }

 private:
  class Unit;
  bool takes(const at::Tensor& created) const;
  std::vector<bool> used_anywhere();

  Group group_;
  at::Device device_;
  int64_t min_elements_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::unique_ptr<ParamCoordinator> coordinator_;
};

}  // namespace lockstep::zero
