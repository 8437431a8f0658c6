// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/storage/file/files.h"
#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::storage {

/// A safetensors file, mapped into memory, as names and bytes; opening reads only the header.
///
/// Refuses the errors of parse_safetensors_header, symbolic links unless `links` allows them, and
/// anything but regular files. Checks structure, not content: a StoredCheckpoint compares
/// checksums, this does not. An access to bytes that were not fetched (see below) ends the process
/// with SIGBUS if they cannot be read. So does a file that shrinks afterwards: see map_private.
///
/// Thread safety: immutable.
class SafetensorsMap {
 public:
  explicit SafetensorsMap(const std::filesystem::path& path, Links links = Links::kRefuse);

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Returns dtypes, shapes and offsets, in the order of the data.
  const std::vector<TensorEntry>& entries() const { return header_.tensors; }
  /// Returns the names in the order of the data.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return index_.contains(name); }
  /// Throws CheckpointError for an unknown name.
  const TensorEntry& entry(const std::string& name) const;

  /// Return the bytes of the complete file, of its header, and of one tensor.
  std::string_view bytes() const;
  std::string_view header_bytes() const { return bytes().substr(0, header_.data_begin); }
  std::string_view bytes(const TensorEntry& entry) const;
  /// Reads a tensor's bytes into the page cache. Throws CheckpointError, naming the tensor, for a
  /// disk error.
  void fetch(const TensorEntry& entry) const;
  /// Does the same in chunks, in order, and calls `visit` with each: one tensor may be longer than
  /// memory.
  void fetch(
      const TensorEntry& entry, const std::function<void(std::string_view chunk)>& visit) const;
  /// Returns writable bytes of a tensor; writes change neither the file nor other maps of it.
  std::byte* private_bytes(const TensorEntry& entry) const;
  /// Returns the map, which keeps the memory of all these bytes alive.
  const std::shared_ptr<const FileMap>& memory() const { return map_; }

 private:
  std::string path_;
  std::shared_ptr<const FileMap> map_;
  SafetensorsHeader header_;
  std::map<std::string, size_t> index_;
};

}  // namespace lockstep::storage
