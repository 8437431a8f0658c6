// SPDX-License-Identifier: Apache-2.0
#include "cli/estimate_memory/estimate_memory_model.h"

#include <algorithm>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "cli/checkpoint/checkpoint_reports.h"
#include "lockstep/storage/catalog/catalog.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/model_files.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/tensor_set.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using storage::Dtype;
using storage::StoredCheckpoint;
using storage::TensorSet;

bool is_floating(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kU8:
    case Dtype::kI8:
    case Dtype::kI16:
    case Dtype::kU16:
    case Dtype::kI32:
    case Dtype::kU32:
    case Dtype::kI64:
    case Dtype::kU64:
      return false;
    default:
      return true;
  }
}

int64_t element_count(const ModelTensor& tensor) {
  return storage::element_count(tensor.shape).value();
}

bool is_buffer(const ModelTensor& tensor) {
  const std::string last = tensor.name.substr(tensor.name.rfind('.') + 1);
  return !is_floating(tensor.dtype) || last == "running_mean" || last == "running_var";
}

double float32_bytes(const ModelTensor& tensor) {
  const auto elements = static_cast<double>(element_count(tensor));
  if (tensor.dtype == Dtype::kBool) {
    return elements / 8;  // As Accelerate counts; torch uses one byte for each.
  }
  return elements * (is_floating(tensor.dtype)
                         ? 4.0
                         : static_cast<double>(storage::dtype_bytes(tensor.dtype)));
}

/// Adafactor keeps a row and a column of each matrix, and all elements of other tensors.
int64_t adafactor_numbers(const ModelTensor& tensor) {
  const int64_t elements = element_count(tensor);
  const size_t dims = tensor.shape.size();
  if (dims < 2 || elements == 0) {
    return elements;
  }
  return elements / tensor.shape[dims - 1] + elements / tensor.shape[dims - 2];
}

struct Module {
  std::map<std::string, Module> modules;
  double own_bytes = 0;
  int64_t own_parameters = 0;
};

void take_if_largest(const std::string& name, double bytes, ModelSize::Layers& layers) {
  if (bytes > layers.largest_bytes) {
    layers.largest.clear();
    layers.largest_bytes = bytes;
  }
  if (bytes == layers.largest_bytes) {
    layers.largest.push_back(name);
  }
}

void find_largest(const Module& module, const std::string& name, ModelSize::Layers& layers) {
  layers.largest_own_parameters = std::max(layers.largest_own_parameters, module.own_parameters);
  for (const auto& [part, inner] : module.modules) {
    find_largest(inner, name.empty() ? part : fmt::format("{}.{}", name, part), layers);
  }
  if (module.modules.empty() && !name.empty()) {
    take_if_largest(name, module.own_bytes, layers);
  }
}

/// Returns the module that owns a tensor of that name.
Module& owner_of(Module& root, const std::string& name) {
  Module* module = &root;
  size_t begin = 0;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
    module = &module->modules[name.substr(begin, dot - begin)];
    begin = dot + 1;
  }
  return *module;
}

bool has_checkpoint(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / storage::kManifestName, error)) {
    // A folder of checkpoints counts, too: the caller refuses it.
    return storage::find_newest(folder).path.has_value();
  }
  return storage::is_checkpoint(folder) || (!fs::exists(folder / storage::kModelFile, error) &&
                                            !fs::exists(folder / storage::kModelIndex, error));
}

std::vector<ModelTensor> tensors_of_checkpoint(const fs::path& path, int model) {
  const StoredCheckpoint stored = open_checkpoint(path);
  const TensorSet set = open_model(stored, model);
  std::vector<ModelTensor> tensors;
  for (const storage::SetTensor& tensor : set.tensors()) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  return tensors;
}

}  // namespace

ModelSize size_of_model(const std::vector<ModelTensor>& tensors) {
  ModelSize size{.layers = ModelSize::Layers()};
  Module root;
  for (const ModelTensor& tensor : tensors) {
    const int64_t elements = element_count(tensor);
    const double bytes = float32_bytes(tensor);
    Module& owner = owner_of(root, tensor.name);
    owner.own_bytes += bytes;
    size.float32_bytes += bytes;
    if (&owner == &root) {
      take_if_largest(tensor.name, bytes, *size.layers);
    }
    if (is_buffer(tensor)) {
      size.buffers += elements;
      continue;
    }
    owner.own_parameters += elements;
    size.parameters += elements;
    size.layers->adafactor_numbers += adafactor_numbers(tensor);
  }
  find_largest(root, "", *size.layers);
  return size;
}

ModelSize size_of_parameters(int64_t parameters) {
  return {
      .parameters = parameters,
      .buffers = 0,
      .float32_bytes = 4 * static_cast<double>(parameters),
      .layers = std::nullopt};
}

std::vector<ModelTensor> tensors_of_model(const fs::path& path, int model) {
  if (!storage::name_exists(path)) {
    throw ConfigError(
        path, "does not exist; expected a .safetensors file, a folder or a checkpoint");
  }
  if (fs::is_directory(path) && has_checkpoint(path)) {
    return tensors_of_checkpoint(path, model);
  }
  if (model != 0) {
    throw ConfigError(
        path, "is not a checkpoint, so it has one model; use --model with checkpoints only");
  }
  std::vector<ModelTensor> tensors;
  for (const storage::SafetensorsMap& file : storage::open_model_files(path)) {
    for (const storage::TensorEntry& entry : file.entries()) {
      tensors.push_back({entry.name, entry.dtype, entry.shape});
    }
  }
  return tensors;
}

}  // namespace lockstep::cli
