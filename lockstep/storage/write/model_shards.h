// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/storage/write/safetensors_writer.h"

namespace lockstep::storage {

/// Assigns tensors, by index, to shards, as huggingface_hub's split_state_dict_into_shards_factory
/// does. In the given order, a shard is closed when the next tensor would make it larger than
/// `max_shard_bytes`. A larger tensor has its own shard, and the current one continues after it.
std::vector<std::vector<size_t>> split_into_shards(
    const std::vector<uint64_t>& tensor_bytes, uint64_t max_shard_bytes);

/// Writes the weights of a model into `folder`, byte for byte as Accelerate's save_model. The files
/// are `model.safetensors`, or, if the weights do not fit into one shard,
/// `model-00001-of-0000N.safetensors` and so on with `model.safetensors.index.json`. Creates
/// `folder` if it is missing. Returns the names of the files once they are on disk.
///
/// Everything is first written to a temporary folder in `folder` and then renamed, the index last;
/// previous weights are replaced, and their files without a successor are removed afterwards. A
/// reader with transformers' rules, such as open_model_files, sees the old or the new weights,
/// never a mixture. While shards replace shards of the same names it sees none. The next save
/// removes the remains of a killed save, or completes it if it was killed at that moment.
///
/// Throws CheckpointError for disk errors, errors of write_safetensors_file, and a folder that is a
/// checkpoint. The old weights then still exist, unless the renaming of shards failed, which the
/// next save completes.
std::vector<std::string> write_model_files(
    const std::filesystem::path& folder,
    const std::vector<OutputTensor>& tensors,
    uint64_t max_shard_bytes);

/// Writes one file of any `name`, which is replaced if it exists. Other weights in `folder` stay.
/// Atomic.
void write_model_file(
    const std::filesystem::path& folder,
    const std::string& name,
    const std::vector<OutputTensor>& tensors);

}  // namespace lockstep::storage
