// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::cli {

/// The name, dtype and shape of a model's tensor.
struct ModelTensor {
  std::string name;
  storage::Dtype dtype = storage::Dtype::kF32;
  std::vector<int64_t> shape;
};

/// The size of a model. `layers` is empty if only the number of parameters is known.
struct ModelSize {
  int64_t parameters = 0;    ///< Trained numbers.
  int64_t buffers = 0;       ///< Other numbers.
  double float32_bytes = 0;  ///< All tensors, with floating point numbers as float32.

  struct Layers {
    double largest_bytes = 0;          ///< The largest layer, as Accelerate counts, in float32.
    std::vector<std::string> largest;  ///< Its name; several names if layers are equally large.
    /// The largest number of parameters that one module owns itself, as DeepSpeed counts.
    int64_t largest_own_parameters = 0;
    int64_t adafactor_numbers = 0;  ///< Numbers in the state of Adafactor.
  };
  std::optional<Layers> layers;
};

/// Sums the tensors of a model. The names define the modules: "a.b.weight" belongs to module b of
/// module a.
///
/// - The largest layer is defined as in Accelerate: the largest of the modules without submodules
///   and of the tensors of the model itself. Other tensors of modules with submodules are ignored.
/// - Files do not mark buffers. Integer tensors, running_mean and running_var count as buffers.
ModelSize size_of_model(const std::vector<ModelTensor>& tensors);

/// Returns the size of a model if only its number of parameters is known.
ModelSize size_of_parameters(int64_t parameters);

/// Reads the tensors of a model on disk, from headers only. `path` is a .safetensors file, a folder
/// or an index of such files (open_model_files), or a checkpoint with model number `model`. Throws
/// ConfigError if the path or the model does not exist; throws CheckpointError for unreadable data.
std::vector<ModelTensor> tensors_of_model(const std::filesystem::path& path, int model);

}  // namespace lockstep::cli
