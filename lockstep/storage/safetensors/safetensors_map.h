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

class PrivateMap;

/// A safetensors file, mapped into memory, as names and bytes; opening reads only the header.
///
/// Refuses the errors of parse_safetensors_header, symbolic links unless `links` allows them, and
/// anything but regular files. Checks structure, not content: a StoredCheckpoint compares
/// checksums, this does not. Accessing bytes of a tensor that were not fetched (see below) ends the
/// process with SIGBUS if they cannot be read, and so does a file that shrinks afterwards: see
/// PrivateMap.
///
/// Thread safety: immutable.
class SafetensorsMap {
 public:
  explicit SafetensorsMap(const std::filesystem::path& path, Links links = Links::kRefuse);

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Dtypes, shapes and offsets, in the order of the data.
  const std::vector<TensorEntry>& entries() const { return header_.tensors; }
  /// In the order of the data.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return index_.contains(name); }
  /// Throws CheckpointError for an unknown name.
  const TensorEntry& entry(const std::string& name) const;

  /// The complete file, its header, and the bytes of one tensor in it.
  std::string_view bytes() const;
  std::string_view header_bytes() const { return bytes().substr(0, header_.data_begin); }
  std::string_view bytes(const TensorEntry& entry) const;
  /// Reads them into the page cache; CheckpointError, naming the tensor, for a disk error.
  void fetch(const TensorEntry& entry) const;
  /// Does the same in chunks, in order, and calls `visit` with each: one tensor may be longer than
  /// memory.
  void fetch(
      const TensorEntry& entry, const std::function<void(std::string_view piece)>& visit) const;
  /// Writable bytes; writes change neither the file nor other maps of it.
  std::byte* private_bytes(const TensorEntry& entry) const;
  /// Keeps the memory of all these alive.
  const std::shared_ptr<const PrivateMap>& memory() const { return map_; }

 private:
  std::string path_;
  std::shared_ptr<const PrivateMap> map_;
  SafetensorsHeader header_;
  std::map<std::string, size_t> index_;
};

}  // namespace lockstep::storage
