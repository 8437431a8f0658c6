// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/checkpoint/weights/module_tensors.h"
#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::checkpoint {

struct SaveModelOptions {
  /// The maximum size of a file in decimal units: "300MB", "10GB".
  std::string max_shard_size = "10GB";
  /// The dtype of written floating-point tensors, converted one at a time; not set: unchanged.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Writes one file of this name, of any size, instead of model.safetensors or its shards.
  std::string file_name = {};
  /// Omits parameters that require no gradient; buffers are written. Only for a module, since a
  /// list of tensors does not mark its parameters.
  bool exclude_frozen_parameters = false;
};

/// Writes the weights of a model into `folder` in transformers' format, byte for byte as
/// Accelerate's save_model. The files are `model.safetensors`, or shards of at most
/// `max_shard_size` with `model.safetensors.index.json`. See write_model_files, also for existing
/// weights and killed saves. Returns the names of the files.
///
/// - Tied weights are saved once, under the first of their names; transformers and
///   load_checkpoint_in_model tie them again.
/// - Other views of shared memory are saved separately, and loading restores them. Accelerate drops
///   all but the first, and safetensors refuses them.
/// - Non-contiguous tensors, and those on other devices, are copied one at a time.
///
/// One process calls it. Throws ConfigError for an invalid max_shard_size, a dtype that is not
/// floating point, a file_name that is a path or lacks the ending .safetensors, and
/// exclude_frozen_parameters with a list of tensors. Throws CheckpointError for a tensor that is
/// undefined, sparse, without data or of a dtype the format lacks, and for errors of
/// write_model_files. Thread-safe.
std::vector<std::string> save_model(
    const NamedTensors& tensors,
    const std::filesystem::path& folder,
    const SaveModelOptions& options = {});

/// Does the same for a module with its buffers.
template <ModuleLike Module>
std::vector<std::string> save_model(
    const Module& module,
    const std::filesystem::path& folder,
    const SaveModelOptions& options = {}) {
  SaveModelOptions rest = options;
  const bool with_frozen = !std::exchange(rest.exclude_frozen_parameters, false);
  return save_model(tensors_of(module, with_frozen), folder, rest);
}

}  // namespace lockstep::checkpoint
