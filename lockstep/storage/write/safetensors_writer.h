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
#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::storage {

/// A tensor to write.
struct OutputTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  /// Returns its elements, row by row: called once, when it is written, and used before the next
  /// tensor's. So copies need the memory of one tensor at a time.
  std::function<std::string_view()> bytes;
};

/// Returns the size in bytes. Throws CheckpointError, naming `path`, if that is impossible.
uint64_t output_bytes(const std::string& path, const OutputTensor& tensor);

/// Writes `tensors`, in any order, to a new file, byte for byte as the reference implementation
/// (PyPI safetensors 0.8), and returns after fsync. With several keys the order of `metadata` is
/// ours, sorted; the reference's is random.
///
/// One pass: checksums are computed while writing. Throws CheckpointError, and leaves no file, if
/// the path exists (also a symbolic link), for a disk error, for a repeated name or "__metadata__",
/// and for exceptions of `bytes`. Thread-safe.
FileSummary write_safetensors_file(
    const std::filesystem::path& path,
    const std::vector<OutputTensor>& tensors,
    const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep::storage
