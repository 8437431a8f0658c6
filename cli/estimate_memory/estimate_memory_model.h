// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::cli {

/// A tensor of a model, as far as its size goes.
struct ModelTensor {
  std::string name;
  storage::Dtype dtype = storage::Dtype::kF32;
  std::vector<int64_t> shape;
};

/// How large a model is. What takes a model's tensors to be known is absent where only a number of
/// parameters is.
struct ModelSize {
  int64_t parameters = 0;    ///< Numbers that training changes.
  int64_t buffers = 0;       ///< Other numbers.
  double float32_bytes = 0;  ///< Of all of it, floating point numbers as float32.

  struct Layers {
    double largest_bytes = 0;          ///< Of the largest layer, as Accelerate counts, in float32.
    std::vector<std::string> largest;  ///< Which it is; several if they are equally large.
    /// Parameters of one module that are no other module's: the most of any, as DeepSpeed counts.
    int64_t largest_own_parameters = 0;
    int64_t adafactor_numbers = 0;  ///< What Adafactor keeps of all parameters.
  };
  std::optional<Layers> layers;
};

/// Adds up the tensors of a model. What modules it has is told by the names: "a.b.weight" belongs
/// to module b of module a.
///
/// - The largest layer is Accelerate's: of the modules that have none within them, and of the
///   tensors that belong to the model itself, the largest. What else belongs to a module with
///   modules within it is not looked at.
/// - Files do not say what is a buffer. Taken for one: what holds integers, and running_mean and
///   running_var, which normalisation layers have.
ModelSize size_of_model(const std::vector<ModelTensor>& tensors);

/// That of a model of which only the number of parameters is known.
ModelSize size_of_parameters(int64_t parameters);

/// The tensors of a model on disk, from headers alone: a .safetensors file, a folder or an index of
/// them (open_model_files), or a checkpoint of ours, of which `model` says which model is meant.
/// ConfigError if there is nothing of that name, or no such model; CheckpointError for what cannot
/// be read.
std::vector<ModelTensor> tensors_of_model(const std::filesystem::path& path, int model);

}  // namespace lockstep::cli
