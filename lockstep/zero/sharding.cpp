// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/sharding.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/pow.h>
#include <c10/core/GradMode.h>

namespace lockstep::zero {

Sharding::Sharding(
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    const std::vector<std::vector<at::Tensor>>& groups,
    Group group,
    const ShardingOptions& options)
    : group_(std::move(group)),
      model_(parameters, buffers, groups, group_, options),
      speculative_(model_),
      reducer_(
          model_,
          speculative_,
          group_,
          options.broadcast_buffers ? tensors_of(buffers) : std::vector<at::Tensor>(),
          options.low_precision_policy,
          options.model_communicates) {}

void Sharding::finish_parameter_use() {
  if (ParamCoordinator* coordinator = model_.coordinator()) {
    // Other ranks may still read parameters, and need the values before the update.
    coordinator->wait_for_all(ParamCoordinator::kUpdate);
    coordinator->release_all();
  }
  write_back_masters();
  speculative_.discard_written();
  speculative_.mark_synced();
}

void Sharding::write_back() {
  if (ParamCoordinator* coordinator = model_.coordinator()) {
    coordinator->write_back();
  }
  write_back_masters();
}

void Sharding::write_back_masters() {
  const c10::AutoGradMode no_grad(false);
  for (const auto& bucket : model_.buckets()) {
    if (bucket->has_masters() && !bucket->is_sharded()) {
      bucket->write_back();
    }
  }
}

void Sharding::gather_parameters() {
  const c10::AutoGradMode no_grad(false);
  if (ParamCoordinator* coordinator = model_.coordinator()) {
    coordinator->drop_secondary_shards();
  }
  std::vector<Pending> pending;
  pending.reserve(model_.buckets().size());
  for (const auto& bucket : model_.buckets()) {
    bucket->bump_versions();
    if (!bucket->is_sharded()) {
      pending.push_back(bucket->start_gather(Source::kExact));
    }
  }
  for (Pending& each : pending) {
    each.wait();
  }
  speculative_.mark_synced();
}

void Sharding::store_quantized(const std::vector<ShardSlice>& copies) {
  model_.slices().store_quantized(copies);
  if (ParamCoordinator* coordinator = model_.coordinator();
      coordinator != nullptr && model_.slices().any_quantized()) {
    coordinator->drop_secondary_shards();
  }
}

Sharding::Memory Sharding::memory() const {
  Memory memory;
  model_.add_memory(memory.parameters, memory.masters, memory.gradients);
  for (const NamedTensor& item : model_.parameters()) {
    if (item.tensor.grad().defined() && !is_gradient_placeholder(item.tensor.grad())) {
      memory.gradients.push_back(item.tensor.grad());
    }
  }
  for (at::Tensor& held : held_gradients()) {
    memory.gradients.push_back(std::move(held));
  }
  return memory;
}

at::Tensor Sharding::norm_over_ranks(const at::Tensor& own, double norm_type) {
  // A rank without gradients cannot infer the other ranks' dtype and device from them.
  const NamedTensors& parameters = model_.parameters();
  const bool wide = std::any_of(parameters.begin(), parameters.end(), [](const auto& item) {
    return item.tensor.scalar_type() == at::kDouble;
  });
  const at::Device device = parameters.empty() ? own.device() : parameters[0].tensor.device();
  const at::Tensor agreed = own.to(device, wide ? at::kDouble : at::kFloat);
  if (std::isinf(norm_type)) {
    return group_.all_reduce(agreed.clone(), ReduceOp::kMax).wait();
  }
  return at::pow(group_.all_reduce(at::pow(agreed, norm_type)).wait(), 1 / norm_type);
}

}  // namespace lockstep::zero
