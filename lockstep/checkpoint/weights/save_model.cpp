// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weights/save_model.h"

#include <limits>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/weights/output_tensors.h"
#include "lockstep/checkpoint/weights/tied_tensors.h"
#include "lockstep/storage/model_files.h"
#include "lockstep/storage/safetensors/byte_size.h"
#include "lockstep/storage/write/model_shards.h"

namespace lockstep::checkpoint {
namespace {

void check(const SaveModelOptions& options) {
  if (options.dtype && !at::isFloatingType(*options.dtype)) {
    throw ConfigError(
        "save_model",
        fmt::format(
            "option dtype is not floating point; got {}, try kHalf or kBFloat16",
            c10::toString(*options.dtype)));
  }
  if (options.exclude_frozen_parameters) {
    throw ConfigError(
        "save_model",
        "exclude_frozen_parameters cannot be combined with a list of tensors, which does not mark "
        "parameters; pass the module, or omit the frozen parameters from the list");
  }
  const std::string& name = options.file_name;
  if (name.empty()) {
    return;
  }
  if (name.find('/') != std::string::npos || !name.ends_with(".safetensors") ||
      name.starts_with('.')) {
    throw ConfigError(
        "save_model",
        fmt::format(
            "file_name is not the name of a safetensors file in the folder; got '{}', try \"{}\"",
            name,
            storage::kModelFile));
  }
  if (options.max_shard_size != SaveModelOptions().max_shard_size) {
    throw ConfigError(
        "save_model",
        "file_name cannot be combined with max_shard_size, which may write several files; set one "
        "of them");
  }
}

}  // namespace

std::vector<std::string> save_model(
    const NamedTensors& tensors,
    const std::filesystem::path& folder,
    const SaveModelOptions& options) {
  check(options);
  const uint64_t max_shard_bytes = storage::parse_bytes("save_model", options.max_shard_size);
  NamedTensors unique;
  for (const std::vector<size_t>& group : tied_groups(tensors)) {
    unique.push_back(tensors[group.front()]);
  }
  const auto output = output_tensors(folder.string(), unique, options.dtype);
  if (options.file_name.empty() || options.file_name == storage::kModelFile) {
    const bool one_file = !options.file_name.empty();
    return storage::write_model_files(
        folder, output, one_file ? std::numeric_limits<uint64_t>::max() : max_shard_bytes);
  }
  storage::write_model_file(folder, options.file_name, output);
  return {options.file_name};
}

}  // namespace lockstep::checkpoint
