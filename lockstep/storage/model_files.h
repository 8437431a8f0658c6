// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "lockstep/storage/safetensors/safetensors_map.h"

namespace lockstep::storage {

/// The file names of weights in transformers and Accelerate.
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kModelIndex = "model.safetensors.index.json";

/// Opens the weights of a model in the layout of transformers, Accelerate and write_model_files:
/// each tensor once, in one of the files.
///
/// `path`: a folder with `model.safetensors`, or else with `model.safetensors.index.json` and its
/// shards; such an index; or one .safetensors file. Only headers are read, and content is not
/// verified, since these files have no checksums. A checkpoint of Lockstep has some: its
/// `model.safetensors`, or the file `path` within it, is verified first.
///
/// Files may be symbolic links to regular files, as in the cache of huggingface_hub, but not in a
/// folder with a manifest.
///
/// Throws CheckpointError, naming the file and if possible the tensor, for:
///
/// - an index that names anything but plain files next to it, lists a tensor that its shard lacks,
///   or omits one that a shard holds (a wrong total_size is a warning);
/// - a damaged checkpoint of Lockstep, a file in it that is not listed, and one with tensors in
///   slices, see `lockstep merge-weights`;
/// - a pickle, which is never read since reading it runs code in it; the error has the conversion
///   command.
std::vector<SafetensorsMap> open_model_files(const std::filesystem::path& path);

/// Throws the CheckpointError with the command that converts the weights in `pickles` to `output`,
/// a .safetensors file.
[[noreturn]] void refuse_pickles(
    const std::vector<std::filesystem::path>& pickles, const std::filesystem::path& output);

/// Returns whether `name` is that of a shard, such as `model-00001-of-00004.safetensors`.
bool is_model_shard(std::string_view name);

}  // namespace lockstep::storage
