// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/merge_weights.h"

#include <algorithm>
#include <new>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/checkpoint/checkpoint_reports.h"
#include "cli/checkpoint/convert_floats.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/model_files.h"
#include "lockstep/storage/safetensors/byte_size.h"
#include "lockstep/storage/tensor_set.h"
#include "lockstep/storage/write/model_shards.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using storage::Dtype;
using storage::OutputTensor;
using storage::SetTensor;
using storage::StoredCheckpoint;
using storage::TensorSet;
using storage::TensorSlice;

/// Refuses an output folder in a checkpoint, whose content must not change.
void check_not_in_checkpoint(const fs::path& output) {
  std::error_code error;
  fs::path folder = fs::weakly_canonical(output, error);
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    if (storage::is_checkpoint(folder)) {
      throw ConfigError(
          output,
          fmt::format(
              "is in the checkpoint {}, which must not change; choose another folder",
              folder.native()));
    }
  }
}

/// RAII scope: the destructor removes folders that the constructor did not find, if they are empty.
class CreatedFolders {
 public:
  explicit CreatedFolders(const fs::path& folder) {
    std::error_code error;
    for (fs::path path = folder; !path.empty() && !fs::exists(path, error);
         path = path.parent_path()) {
      absent_.push_back(path);
    }
  }
  ~CreatedFolders() {
    std::error_code ignored;
    for (const fs::path& path : absent_) {
      fs::remove(path, ignored);
    }
  }
  CreatedFolders(const CreatedFolders&) = delete;
  CreatedFolders& operator=(const CreatedFolders&) = delete;

 private:
  std::vector<fs::path> absent_;
};

void check_output(const fs::path& output, bool force) {
  std::error_code error;
  check_not_in_checkpoint(output);
  if (output.extension() == ".safetensors" ||
      (storage::name_exists(output) && !fs::is_directory(output, error))) {
    throw ConfigError(
        output, "is not a folder; expected a folder, since weights may need several files");
  }
  for (const char* name : {storage::kModelFile, storage::kModelIndex}) {
    if (storage::name_exists(output / name) && !force) {
      throw ConfigError(output / name, "exists; choose another folder, or replace it with --force");
    }
  }
}

Dtype written_as(Dtype dtype, MergeDtype wanted) {
  if (!is_narrow_float(dtype)) {
    return dtype;
  }
  switch (wanted) {
    case MergeDtype::kKeep:
      return dtype;
    case MergeDtype::kFloat32:
      return Dtype::kF32;
    case MergeDtype::kFloat16:
      return Dtype::kF16;
    case MergeDtype::kBFloat16:
      return Dtype::kBF16;
  }
  return dtype;
}

/// Fills `buffer` with the slices of a tensor, converted to `dtype`.
void convert(const TensorSet& set, const SetTensor& tensor, Dtype dtype, std::string& buffer) {
  const size_t width = storage::dtype_bytes(dtype);
  buffer.resize(static_cast<size_t>(tensor.elements()) * width);
  for (const TensorSlice& slice : tensor.slices) {
    char* const to = buffer.data() + static_cast<size_t>(slice.begin) * width;
    const int64_t overflows = convert_floats(tensor.dtype, set.bytes(slice), dtype, to);
    if (overflows > 0) {
      throw CheckpointError(
          set.file(slice.file).path(),
          fmt::format(
              "has {} out of the range of {}; try {}",
              counted(static_cast<size_t>(overflows), "value"),
              storage::dtype_name(dtype),
              dtype == Dtype::kF16 ? "--dtype bfloat16, or float32" : "--dtype float32"),
          storage::in_quotes(tensor.name));
    }
  }
}

/// Returns the bytes of a complete tensor as `dtype`; in `buffer` if it has several slices, or
/// another dtype.
std::string_view assemble(
    const TensorSet& set, const SetTensor& tensor, Dtype dtype, std::string& buffer) {
  if (tensor.dtype != dtype) {
    convert(set, tensor, dtype, buffer);
    return buffer;
  }
  if (tensor.slices.size() == 1) {
    return set.bytes(tensor.slices.front());
  }
  buffer.reserve(static_cast<size_t>(tensor.elements()) * storage::dtype_bytes(tensor.dtype));
  for (const TensorSlice& slice : tensor.slices) {
    buffer += set.bytes(slice);
  }
  return buffer;
}

/// Returns the bytes as assemble() does. Throws CheckpointError, naming the tensor, if there is not
/// enough memory.
std::string_view tensor_bytes(
    const TensorSet& set, const SetTensor& tensor, Dtype dtype, std::string& buffer) {
  buffer = std::string();  // Frees the memory of the previous tensor first.
  if (tensor.slices.empty()) {
    return {};
  }
  try {
    return assemble(set, tensor, dtype, buffer);
  } catch (const std::bad_alloc&) {
    const uint64_t bytes = static_cast<uint64_t>(tensor.elements()) * storage::dtype_bytes(dtype);
    throw CheckpointError(
        set.file(tensor.slices.front().file).path(),
        fmt::format(
            "needs {} ({} bytes) of memory to be written as {}, and less is available; use a host "
            "with more memory, a higher ulimit -v{}",
            storage::format_bytes(bytes),
            bytes,
            storage::dtype_name(dtype),
            tensor.dtype == dtype ? "" : ", or --dtype keep"),
        storage::in_quotes(tensor.name));
  }
}

/// Returns the names of frozen parameters that the checkpoint does not have.
std::vector<std::string> absent_parameters(const StoredCheckpoint& stored, int model) {
  std::vector<std::string> names;
  const auto all = stored.meta().find("left_out");
  if (all == stored.meta().end() || !all->is_array() || all->size() <= static_cast<size_t>(model)) {
    return names;
  }
  for (const nlohmann::json& name : (*all)[static_cast<size_t>(model)]) {
    if (name.is_string()) {
      names.push_back(name.get<std::string>());
    }
  }
  return names;
}

/// Returns the name of a model's files without their ending.
std::string stem_of(int model) {
  return model == 0 ? "model" : fmt::format("model_{}", model);
}

/// Counts the models of a checkpoint.
int models_of(const StoredCheckpoint& stored) {
  int models = 0;
  while (TensorSet::exists(stored, stem_of(models))) {
    ++models;
  }
  return models;
}

}  // namespace

TensorSet open_model(const StoredCheckpoint& stored, int model) {
  const std::string stem = stem_of(model);
  if (!TensorSet::exists(stored, stem)) {
    if (models_of(stored) == 0) {
      throw ConfigError(stored.path(), "has no model; expected a checkpoint with a prepared model");
    }
    throw ConfigError(
        stored.path(),
        fmt::format(
            "has no model {}; expected a value of --model from 0 to {}",
            model,
            models_of(stored) - 1));
  }
  return TensorSet(stored, stem);
}

MergeDtype parse_merge_dtype(const std::string& word) {
  const auto* const found = std::find(kMergeDtypes.begin(), kMergeDtypes.end(), word);
  if (found == kMergeDtypes.end()) {
    throw ConfigError(
        "--dtype",
        fmt::format("got {}, expected one of {}", printable(word), fmt::join(kMergeDtypes, ", ")));
  }
  return static_cast<MergeDtype>(found - kMergeDtypes.begin());
}

Report merge_weights(const fs::path& path, const fs::path& output, const MergeOptions& options) {
  // TensorSet checks the files that it reads; damage in other files does not matter.
  const StoredCheckpoint stored = open_checkpoint(path, storage::Verify::kManifest);
  const TensorSet set = open_model(stored, options.model);
  check_output(output, options.force);
  std::string buffer;
  std::vector<OutputTensor> tensors;
  int64_t elements = 0;
  size_t converted = 0;
  for (const SetTensor& tensor : set.tensors()) {
    elements += tensor.elements();
    const Dtype dtype = written_as(tensor.dtype, options.dtype);
    converted += dtype == tensor.dtype ? 0 : 1;
    tensors.push_back({tensor.name, dtype, tensor.shape, [&set, &tensor, &buffer, dtype] {
                         return tensor_bytes(set, tensor, dtype, buffer);
                       }});
  }
  const CreatedFolders created(output);
  uint64_t bytes = 0;
  for (const OutputTensor& tensor : tensors) {
    bytes += storage::output_bytes(path, tensor);
  }
  const std::vector<std::string> names =
      storage::write_model_files(output, tensors, options.max_shard_bytes);
  Report report;
  for (const std::string& name : names) {
    report.text += printable(output / name) + "\n";
  }
  const std::string dtype = kMergeDtypes[static_cast<size_t>(options.dtype)];
  report.text += fmt::format(
      "{}, {} values, {}{}\n",
      counted(tensors.size(), "tensor"),
      with_commas(elements),
      storage::format_bytes(bytes),
      converted == 0 ? ""
                     : fmt::format("; {} converted to {}", counted(converted, "tensor"), dtype));
  const std::vector<std::string> absent = absent_parameters(stored, options.model);
  if (!absent.empty()) {
    report.text += fmt::format(
        "without {}, which the checkpoint does not have: {}\n",
        counted(absent.size(), "frozen parameter"),
        printable(fmt::format("{}", fmt::join(absent, ", "))));
  }
  report.json = {
      {"checkpoint", path.native()},
      {"output", output.native()},
      {"files", names},
      {"tensors", tensors.size()},
      {"elements", elements},
      {"bytes", bytes},
      {"dtype", dtype},
      {"converted", converted},
      {"left_out", absent}};
  return report;
}

}  // namespace lockstep::cli
