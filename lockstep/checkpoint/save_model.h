// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/checkpoint/module_tensors.h"
#include "lockstep/comm/named_tensor.h"

namespace lockstep::checkpoint {

struct SaveModelOptions {
  /// "300MB", "10GB", in decimal units.
  std::string max_shard_size = "10GB";
  /// What floating-point tensors are written as, rounded one at a time; not set: as they are.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// All in one file of this name, however large, instead of model.safetensors or its shards.
  std::string file_name = {};
  /// Leave parameters that require no gradient out; buffers stay. Of a module: tensors by name do
  /// not say which are parameters.
  bool exclude_frozen_parameters = false;
};

/// Writes the weights of a model into `folder` as transformers reads them and Accelerate's
/// save_model writes them, to the byte: `model.safetensors`, or shards of at most `max_shard_size`
/// with `model.safetensors.index.json`; see write_model_files, also for what happens to weights
/// that are there already and to a save that is killed. Returns the names of the files.
///
/// - Tied weights are saved once, under the first of their names; transformers ties them again, and
///   so does load_checkpoint_in_model.
/// - Other views of shared memory are saved each for itself, where Accelerate drops all but the
///   first and safetensors refuses: nothing is lost, and what is loaded into them is the same.
/// - What is not contiguous, or on another device, is copied, one tensor at a time.
///
/// One process calls it. ConfigError for a max_shard_size that is none, a dtype that is no
/// floating-point one, a file_name that is a path or has not the ending .safetensors, and
/// exclude_frozen_parameters.
/// CheckpointError for a tensor that is undefined, sparse, without data or of a
/// dtype the format lacks, and for what write_model_files refuses. Thread-safe.
std::vector<std::string> save_model(
    const NamedTensors& tensors,
    const std::filesystem::path& folder,
    const SaveModelOptions& options = {});

/// The same for a module with its buffers.
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
