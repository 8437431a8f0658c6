// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/zero/coordinator/init.h"
#include "lockstep/zero/sharding.h"

namespace lockstep::internal {

/// Builds the models of Accelerator::zero_init, and hands their shards over to the sharding of the
/// prepared model. Not thread-safe.
class ZeroInit {
 public:
  ZeroInit(Group group, at::Device device) : group_(std::move(group)), device_(device) {}

  /// Begins a scope in which new tensors are sharded; see zero::Init.
  std::shared_ptr<void> begin();
  /// Shards the remaining `tensors` of a model, and moves them to the device. Hands them over
  /// to `sharding` unless it is null. Collective.
  void finish(const NamedTensors& tensors, zero::Sharding* sharding);
  /// Unshards permanently those of `tensors` that were built in a scope. Collective.
  void unshard(const std::vector<at::Tensor>& tensors);
  /// Moves all remaining shards to `sharding`: ranks that serve its parameters must also serve
  /// these. Collective.
  void transfer_to(zero::Sharding& sharding);

 private:
  Group group_;
  at::Device device_;
  std::vector<std::unique_ptr<zero::Init>> inits_;  ///< Of models that no sharding has taken over.
};

}  // namespace lockstep::internal
