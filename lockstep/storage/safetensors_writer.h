// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors_header.h"

namespace lockstep::checkpoint {

/// A tensor to be written.
struct OutputTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  /// Its elements, row by row: asked for once, when they are written, and used before those of the
  /// next tensor are asked for. So what has to be copied first costs the memory of one tensor.
  std::function<std::string_view()> bytes;
};

/// How many bytes it has. CheckpointError, naming `path`, if that is more than any memory holds.
uint64_t output_bytes(const std::string& path, const OutputTensor& tensor);

/// Writes `tensors`, in any order, to a new file, byte for byte what the reference implementation
/// (PyPI safetensors 0.8) writes, and returns once the disk has it (fsync). With several keys the
/// order of `metadata` is ours, sorted; the reference's is random.
///
/// One pass: checksums are taken from the bytes on their way out. CheckpointError, and no file left
/// behind, if the path exists (a symbolic link too), the disk refuses, a name is given twice or is
/// "__metadata__", and whatever `bytes` throws. Thread-safe.
FileSummary write_safetensors_file(
    const std::filesystem::path& path,
    const std::vector<OutputTensor>& tensors,
    const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep::checkpoint
