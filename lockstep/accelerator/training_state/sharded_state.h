// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/zero/sharding.h"

namespace lockstep::internal {

/// The disk that a state is saved to.
struct SaveDisk {
  /// Each host's own disk, which has only the files of its ranks. Only the same rank of a job with
  /// the same sharding can load them. False: one disk that all ranks see.
  bool on_each_host = false;
  /// This rank writes the unsharded state, on its disk.
  bool is_writer = true;
};

/// Adds this rank's optimizer state as its part of the set of tensors `stem`, by parameter names,
/// so that any number of ranks of any stage may load it.
void add_sharded_optimizer(
    checkpoint::Contents& contents,
    const std::string& stem,
    torch::optim::Optimizer& optimizer,
    const zero::Sharding& sharding,
    const ParameterName& names,
    const SaveDisk& disk);

/// Adds this rank's part of a model by the same rules: slices of sharded parameters and of fp32
/// masters, and, on the main process, all other `tensors`.
void add_sharded_model(
    checkpoint::Contents& contents,
    const std::string& stem,
    const NamedTensors& tensors,
    const zero::Sharding& sharding,
    const SaveDisk& disk);

/// Returns whether `stem` was saved on each host, in parts.
bool is_in_parts(const checkpoint::Reader& reader, const std::string& stem);

/// Returns the optimizer state that this rank saved on its host, in the form of own_slices. Throws
/// CheckpointError, naming the file and the host, if it is on another host, or was sharded
/// differently.
NamedTensors own_optimizer_part(
    const checkpoint::Reader& reader,
    const std::string& stem,
    const zero::Sharding& sharding,
    const ParameterName& names);

/// A model's tensors and their saved values, as this rank has them. A sharded parameter, or one
/// with an fp32 master, becomes this rank's 1-D shard slice on both sides; one that only other
/// ranks own is omitted. Values saved in the parameter's own dtype stay in that dtype. Unless
/// `from_fp32_weights`, a master is the parameter's value rounded to its dtype. Values that do not
/// fit stay as they are, to be refused.
struct ModelShards {
  NamedTensors current;
  NamedTensors saved;
  /// Parameters with masters that this rank has in full, and their saved values.
  std::vector<std::pair<at::Tensor, at::Tensor>> full_parameters = {};
  /// The copies among `current` for Sharding::store_quantized.
  std::vector<zero::ShardSlice> quantized = {};
};
ModelShards own_model_shards(
    const NamedTensors& current,
    NamedTensors saved,
    const zero::Sharding& sharding,
    bool from_fp32_weights);

/// Does the same for a state saved on each host, in parts. The list of full parameters is empty:
/// with masters, the ranks get their parameters from Sharding::gather_parameters. Throws
/// CheckpointError as above.
ModelShards own_model_part(
    const checkpoint::Reader& reader,
    const std::string& stem,
    const NamedTensors& current,
    const zero::Sharding& sharding,
    bool from_fp32_weights);

/// Returns this rank's slices of an optimizer's saved state: slices of tensors with the shape of
/// their parameter, and `factors` (row and column sums) in full. Other tensors, and those of no
/// known parameter, stay as they are, to be refused.
NamedTensors own_slices(
    NamedTensors saved,
    const zero::Sharding& sharding,
    const ParameterName& names,
    const std::vector<const char*>& factors);

}  // namespace lockstep::internal
