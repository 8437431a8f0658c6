// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>

#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/expert_parallel/model_experts.h"
#include "lockstep/sync/data_parallel.h"

namespace lockstep::internal {

/// The experts of one model on a mesh with ep: each process has a part of them, by names that no
/// other process of its line has, or as its rows of a tensor of all.
struct DividedExperts {
  NamedTensors own = {};           ///< Parameters of this process's experts.
  std::set<const void*> ids = {};  ///< Their addresses.
  /// Names that only other processes of the line, or other stages of a pipeline, have.
  std::set<std::string> others = {};
  std::set<const void*> stacked = {};  ///< Addresses of those of which each process has rows.
  /// Averages the gradients of `own` over the processes that have the same experts; null under
  /// ZeRO, whose sharding does it.
  std::shared_ptr<DataParallel> parallel = nullptr;

  bool has(const at::Tensor& parameter) const {
    return ids.contains(parameter.unsafeGetTensorImpl());
  }
};

/// Returns the experts that the processes of the mesh divide, without `parallel`; null without any.
/// Throws ConfigError on all processes for layers that were made for another group than
/// MeshGroups::experts. Collective in the pipeline, and in that group if the mesh has ep.
std::shared_ptr<DividedExperts> divide_experts(
    const RunContext& context, const expert_parallel::ModelExperts& given);

/// Gives the processes that have the same tensors equal values of them, those of the first one.
/// `experts` may be null. Collective.
void broadcast_values(
    const RunContext& context,
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    const DividedExperts* experts);

/// Returns `tensors` without those of experts. `experts` may be null.
NamedTensors without_experts(NamedTensors tensors, const DividedExperts* experts);

/// Returns the averaging of both parts of a model as one.
std::shared_ptr<GradientSync> joint_sync(
    std::shared_ptr<DataParallel> shared, std::shared_ptr<DataParallel> experts);

}  // namespace lockstep::internal
