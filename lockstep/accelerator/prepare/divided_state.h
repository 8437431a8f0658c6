// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/optim/state/optimizer_state.h"

/// Checkpoints hold full tensors, so that they fit any mesh: these functions convert the parts of
/// divided parameters, and the parts of optimizer state of the same shape. Each tensor is gathered
/// at a time; `keeps`: this process needs the result. Those that gather are collective in the tp
/// line, in the ep line, whose experts they add, and in the pipeline, whose stages they join: each
/// layer's tensors once, under their names in the full model. Other tensors are returned as they
/// are, and without `keeps` left out. Those that return this process's own omit the tensors of
/// other stages and the experts of other processes.
namespace lockstep::internal {

/// The results have the parameters' dtypes, also under ZeRO stage 3.
NamedTensors full_model_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps);
/// `saved`: full tensors by the names of `current`.
NamedTensors own_model_tensors(
    const PreparedObjects& objects, const NamedTensors& current, NamedTensors saved);

/// Names are those of optimizer_tensors().
NamedTensors full_optimizer_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps);
NamedTensors own_optimizer_tensors(const PreparedObjects& objects, NamedTensors saved);

/// Do the same under ZeRO, from the shards; `with_masters`: in fp32 where there are some.
/// Collective also among the processes that shard a model; costs an all_reduce of each tensor's
/// part there.
NamedTensors full_sharded_model_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps, bool with_masters = true);
NamedTensors full_sharded_optimizer_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps);

/// Returns the names that the stages of a pipeline and the processes of an ep line have, each once.
/// Collective in both.
std::vector<std::string> names_of_all_parts(
    const PreparedObjects& objects, const std::vector<std::string>& own);

/// Returns the number of bytes of the full tensors. Local.
int64_t full_bytes(const PreparedObjects& objects, const NamedTensors& own);

}  // namespace lockstep::internal
