// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/comm/named_tensor.h"

namespace lockstep::checkpoint {

class PrivateMap;

/// Writes `tensors` to a new file, byte for byte what the reference implementation (PyPI
/// safetensors 0.8) writes, and returns once the disk has it (fsync). With several keys the order
/// of `metadata` is ours, sorted; the reference's is random.
///
/// One pass: checksums are taken from the bytes on their way out. Tensors on other devices, or not
/// contiguous, are copied one at a time. Shared storage is written once per name.
///
/// CheckpointError, and no file left behind, if the path exists (a symbolic link too), the disk
/// refuses, a name is given twice or is "__metadata__", or a tensor is undefined, sparse, without
/// data, or of a dtype the format lacks. Thread-safe.
FileSummary write_safetensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata = {});

/// A safetensors file, mapped into memory: opening reads the header alone.
///
/// Refuses what parse_safetensors_header refuses, symbolic links, and what is no regular file.
/// Checks structure, not content: a Reader compares checksums, this does not. The file must not
/// shrink while it is mapped: the kernel answers a read beyond its end with SIGBUS.
///
/// Thread safety: immutable.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Dtypes, shapes and places, in the order of the data.
  const std::vector<TensorEntry>& entries() const { return header_.tensors; }
  /// In the order of the data.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return index_.contains(name); }

  /// A view of the mapped file, which stays mapped as long as the tensor or a view of it lives.
  /// Writing to it is allowed, costs a copy of each page touched, and changes neither the file nor
  /// what another SafetensorsFile sees. Data not aligned to its dtype is copied.
  /// CheckpointError if there is no such tensor, or if a BOOL is neither 0 nor 1.
  at::Tensor tensor(const std::string& name) const;

  /// The whole file, and the bytes of one tensor in it.
  std::string_view bytes() const;
  std::string_view bytes(const TensorEntry& entry) const;

 private:
  std::string path_;
  std::shared_ptr<const PrivateMap> map_;
  SafetensorsHeader header_;
  std::map<std::string, size_t> index_;
};

}  // namespace lockstep::checkpoint
