// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/zero/sharding.h"

namespace lockstep {

/// Whose disk a state is saved to.
struct SavedWhere {
  /// Each host's own, which has what its ranks wrote, and no other: files that only the same rank
  /// of a job that is divided alike can load. Else one that all see.
  bool on_each_host = false;
  /// This rank writes what is not divided, on its disk.
  bool leads = true;
};

/// Adds what this rank has of the optimizer's state, as its part of the set of tensors `stem`: by
/// the names of parameters, so that any number of ranks of any stage may load it.
void add_sharded_optimizer(
    checkpoint::Contents& contents,
    const std::string& stem,
    torch::optim::Optimizer& optimizer,
    const zero::Sharding& sharding,
    const ParameterName& names,
    const SavedWhere& where);

/// Adds what this rank has of a model, by the same rules: slices of parameters that come and go,
/// and of the fp32 masters of others, and, where it leads, all else of `tensors`.
void add_sharded_model(
    checkpoint::Contents& contents,
    const std::string& stem,
    const NamedTensors& tensors,
    const zero::Sharding& sharding,
    const SavedWhere& where);

/// Whether `stem` was saved on each host, in parts.
bool is_in_parts(const checkpoint::Reader& reader, const std::string& stem);

/// What this rank saved of an optimizer on its host: as own_slices gives it. CheckpointError,
/// naming the file and the host, if it is not on this one, or was divided otherwise.
NamedTensors own_optimizer_part(
    const checkpoint::Reader& reader,
    const std::string& stem,
    const zero::Sharding& sharding,
    const ParameterName& names);

/// A model's tensors and their saved values, as this rank has them: a parameter that comes and
/// goes, or has fp32 masters, becomes this rank's piece of it, 1-D, on both sides; one of which
/// other ranks own all is left out. What was saved in the parameter's own dtype is in its piece's
/// then; unless `from_fp32_weights`, a master is what the parameter's dtype has of it. What does
/// not fit together stays as it is, to be refused.
struct ModelShards {
  NamedTensors current;
  NamedTensors saved;
  /// Parameters with masters that this rank has whole, and what they were saved as.
  std::vector<std::pair<at::Tensor, at::Tensor>> whole = {};
  /// Among `current`, copies for Sharding::pack.
  std::vector<zero::ShardSlice> packed = {};
};
ModelShards own_model_shards(
    const NamedTensors& current,
    NamedTensors saved,
    const zero::Sharding& sharding,
    bool from_fp32_weights);

/// The same of what was saved on each host, in parts. `whole` is empty: where there are masters,
/// the ranks get their parameters by Sharding::gather_parameters. CheckpointError as above.
ModelShards own_model_part(
    const checkpoint::Reader& reader,
    const std::string& stem,
    const NamedTensors& current,
    const zero::Sharding& sharding,
    bool from_fp32_weights);

/// Of an optimizer's saved state, what belongs to this rank's pieces of the parameters: slices of
/// tensors that are shaped as their parameter is, and `factors`, the fields of rows and columns,
/// whole. What is neither, and what belongs to no parameter, stays as it is, to be refused.
NamedTensors own_slices(
    NamedTensors saved,
    const zero::Sharding& sharding,
    const ParameterName& names,
    const std::vector<const char*>& factors);

}  // namespace lockstep
