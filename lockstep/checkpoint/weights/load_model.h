// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "lockstep/checkpoint/weights/module_tensors.h"
#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::checkpoint {

struct LoadModelOptions {
  /// Throws for names in only the file or only the model. False: they are returned, and matching
  /// tensors are loaded.
  bool strict = true;
  /// Prefixes of saved names and their replacements: {{"module.", ""}}. The longest matching prefix
  /// of a name is used; {"", "model."} matches all. Prefixes match characters: end one with a dot
  /// to match whole components.
  std::map<std::string, std::string> prefix_map = {};
  /// The dtype of loaded floating-point tensors. Not set: the model's dtype, with conversion.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// The device of each module or tensor, by name; the longest match counts, "" is the whole model.
  /// Empty: unchanged.
  std::map<std::string, at::Device> device_map = {};
};

/// Sorted names. A tied weight is not missing if one of its names was saved.
struct LoadedNames {
  std::vector<std::string> missing;     ///< In the model, but not saved.
  std::vector<std::string> unexpected;  ///< Saved, but not in the model; after renaming.
};

/// Loads weights into a model; see open_model_files for `path`. Everything is checked before
/// anything is changed. A tensor that keeps its device and dtype is written to in place, visible in
/// all its views. Another one gets new memory and loses its gradient. Tied tensors stay tied. Files
/// are mapped, so no further memory is needed; a tensor is copied once.
///
/// Throws CheckpointError, naming all faults at once, for missing or unexpected names (if strict),
/// another shape, an impossible dtype conversion (floating point to integer, complex to real), and
/// tied weights saved with different values. Throws CheckpointError also for files that
/// open_model_files refuses. Throws ConfigError for a tensor of the model without memory (meta),
/// and for a `dtype` that is not floating point. Throws ConfigError for a device_map that omits a
/// tensor, has an unknown name, or separates tied tensors.
///
/// Modelled on accelerate.utils.load_checkpoint_in_model, which is not strict by default.
LoadedNames load_checkpoint_in_model(
    const NamedTensors& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options = {});

/// Does the same for a module with its buffers.
template <ModuleLike Module>
LoadedNames load_checkpoint_in_model(
    const Module& module, const std::filesystem::path& path, const LoadModelOptions& options = {}) {
  return load_checkpoint_in_model(tensors_of(module), path, options);
}

/// Checked weights that are not loaded yet: the first half of load_checkpoint_in_model.
struct CheckedWeights {
  LoadedNames names;
  std::function<void()> apply;  ///< The second half; the model must not have changed meanwhile.
};
CheckedWeights check_checkpoint_in_model(
    const NamedTensors& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options = {});

}  // namespace lockstep::checkpoint
