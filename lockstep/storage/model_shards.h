// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/storage/safetensors_writer.h"

namespace lockstep::checkpoint {

/// Which tensors, by their place, go together into each shard, as huggingface_hub's
/// split_state_dict_into_shards_factory has it: in the order given, a shard is closed when the next
/// tensor would make it larger than `max_shard_bytes`. A tensor larger than that has a shard of its
/// own, and the one being filled goes on behind it.
std::vector<std::vector<size_t>> split_into_shards(
    const std::vector<uint64_t>& tensor_bytes, uint64_t max_shard_bytes);

/// Writes the weights of a model into `folder`, which is made if need be, byte for byte what
/// Accelerate's save_model writes: `model.safetensors`; or, if they do not fit into one shard,
/// `model-00001-of-0000N.safetensors` and so on and `model.safetensors.index.json`. Returns the
/// names of these files once the disk has them.
///
/// All of it is written to a temporary folder in `folder` first and then renamed, the index last;
/// weights that were there before are replaced, and those of their files that have no successor are
/// removed after that. A reader that goes by transformers' rules, as open_model_files does, sees
/// the old ones or the new ones, or, in the moment in which shards take the names of other shards,
/// none; never a mixture. What a killed process left is removed by the next save, or, if it was
/// killed in that moment, put in place, whatever becomes of that save itself.
///
/// CheckpointError for all that the disk refuses, what write_safetensors_file refuses, and a folder
/// that is a checkpoint; the old weights are still there unless it was a renaming of shards that
/// failed, in which case the next save puts the new ones in place.
std::vector<std::string> write_model_files(
    const std::filesystem::path& folder,
    const std::vector<OutputTensor>& tensors,
    uint64_t max_shard_bytes);

/// The same as one file of any `name`, which is replaced if it is there. Other weights in `folder`
/// stay. Whole or, after a kill or a failure, what was there before.
void write_model_file(
    const std::filesystem::path& folder,
    const std::string& name,
    const std::vector<OutputTensor>& tensors);

}  // namespace lockstep::checkpoint
