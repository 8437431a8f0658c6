// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "lockstep/storage/safetensors_map.h"

namespace lockstep::checkpoint {

/// What transformers and Accelerate call the weights of a model.
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kModelIndex = "model.safetensors.index.json";

/// The weights of a model, as transformers, Accelerate and write_model_files lay them out: each
/// tensor once, in one of the files.
///
/// `path`: a folder with `model.safetensors`, or else with `model.safetensors.index.json` and the
/// shards it names; such an index; or one .safetensors file. Reads headers alone; nothing says
/// whether the content is what was written, since these files have no checksums. A checkpoint of
/// ours has some: its `model.safetensors`, or the one of its files that `path` is, is read and
/// compared with them first.
///
/// Files may be symbolic links to regular files, as in the cache of huggingface_hub, but not beside
/// a manifest.
///
/// CheckpointError, naming the file and where it can the tensor, unless all agree: for an index
/// that names anything but plain files beside it, that lists a tensor its shard lacks, or that
/// misses one a shard holds (a wrong total_size is a warning); for a checkpoint of ours that
/// is damaged, or whose tensors are divided among files, see `lockstep merge-weights`; for a file
/// in it that it does not list. A pickle is never read, since reading one runs code in it: the
/// error says how to convert it.
std::vector<SafetensorsMap> open_model_files(const std::filesystem::path& path);

/// Throws the CheckpointError that says how to convert the weights in `pickles` to `output`, a
/// .safetensors file.
[[noreturn]] void refuse_pickles(
    const std::vector<std::filesystem::path>& pickles, const std::filesystem::path& output);

/// Whether it is the name of a shard, `model-00001-of-00004.safetensors`.
bool is_model_shard(std::string_view name);

}  // namespace lockstep::checkpoint
