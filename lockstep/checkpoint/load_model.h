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

#include "lockstep/checkpoint/module_tensors.h"
#include "lockstep/comm/named_tensor.h"

namespace lockstep::checkpoint {

struct LoadModelOptions {
  /// Names of the file that the model has not, and the other way round, are an error. Off: they are
  /// returned, and what fits is loaded.
  bool strict = true;
  /// What saved names begin with, and what they begin with here instead: {{"module.", ""}}. Each
  /// name goes by the longest that fits it, {"", "model."} fitting all. Characters count, not parts
  /// of names: end with a dot what is to match whole parts.
  std::map<std::string, std::string> prefix_map = {};
  /// What floating point tensors become, here, if they were saved as such. Unset: each keeps the
  /// dtype it has here, and what was saved in another one is converted.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Where tensors go, by names of modules or tensors, the longest counts, "" is the whole model.
  /// Empty: all stay where they are.
  std::map<std::string, at::Device> device_map = {};
};

/// Sorted. Of tied weights none is missing if one of their names was saved.
struct LoadedNames {
  std::vector<std::string> missing;     ///< In the model, and not among what was saved.
  std::vector<std::string> unexpected;  ///< Saved, by the names they would have here.
};

/// Loads weights, see open_model_files for what `path` may be, into a model. All is checked before
/// anything is changed. A tensor that keeps its device and dtype is written to in place, and so
/// shows in all views of it; another gets new memory, and loses its gradient, and tied ones stay
/// tied. Costs no memory beside that, for files are mapped; a tensor is copied once.
///
/// CheckpointError, naming everything that is wrong at once, for names that are missing or
/// unexpected (if strict), another shape, a dtype that cannot become the one here (floating point
/// an integer, complex a real), tied weights saved with different values; for what open_model_files
/// refuses. ConfigError for a tensor of the model without memory (meta), a device_map that leaves a
/// tensor out, names none, or parts tied ones, and a `dtype` that is no floating point one.
///
/// After accelerate.utils.load_checkpoint_in_model, which is not strict unless asked for. Thread
/// safety: none.
LoadedNames load_checkpoint_in_model(
    const NamedTensors& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options = {});

/// The same for a module with its buffers.
template <ModuleLike Module>
LoadedNames load_checkpoint_in_model(
    const Module& module, const std::filesystem::path& path, const LoadModelOptions& options = {}) {
  return load_checkpoint_in_model(tensors_of(module), path, options);
}

/// The first half of load_checkpoint_in_model: all of its checks.
struct CheckedWeights {
  LoadedNames names;
  std::function<void()> apply;  ///< The other half; the model must not have changed meanwhile.
};
CheckedWeights check_checkpoint_in_model(
    const NamedTensors& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options = {});

}  // namespace lockstep::checkpoint
