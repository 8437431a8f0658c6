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

#include "lockstep/storage/files.h"
#include "lockstep/storage/safetensors_header.h"

namespace lockstep::checkpoint {

class PrivateMap;

/// A safetensors file, mapped into memory, as names and bytes; opening reads the header alone.
///
/// Refuses what parse_safetensors_header refuses, symbolic links unless `links` allows them, and
/// what is no regular file.
/// Checks structure, not content: a StoredCheckpoint compares checksums, this does not. Bytes of a
/// tensor that were not fetched, in one of the ways below, end the process with SIGBUS if they
/// cannot be read, and so do those of a file that shrinks after that: see PrivateMap.
///
/// Thread safety: immutable.
class SafetensorsMap {
 public:
  explicit SafetensorsMap(const std::filesystem::path& path, Links links = Links::kRefuse);

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Dtypes, shapes and places, in the order of the data.
  const std::vector<TensorEntry>& entries() const { return header_.tensors; }
  /// In the order of the data.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return index_.contains(name); }
  /// CheckpointError if there is none of that name.
  const TensorEntry& entry(const std::string& name) const;

  /// The whole file, its header, and the bytes of one tensor in it.
  std::string_view bytes() const;
  std::string_view header_bytes() const { return bytes().substr(0, header_.data_begin); }
  std::string_view bytes(const TensorEntry& entry) const;
  /// Has them read, or CheckpointError, naming the tensor, if that cannot be.
  void fetch(const TensorEntry& entry) const;
  /// The same piece by piece, in order, each of which is handed to `visit` while it is there: one
  /// tensor may be longer than memory.
  void fetch(
      const TensorEntry& entry, const std::function<void(std::string_view piece)>& visit) const;
  /// The same to be written to, which changes neither the file nor what others see of it.
  std::byte* private_bytes(const TensorEntry& entry) const;
  /// Keeps the memory behind all these alive.
  const std::shared_ptr<const PrivateMap>& memory() const { return map_; }

 private:
  std::string path_;
  std::shared_ptr<const PrivateMap> map_;
  SafetensorsHeader header_;
  std::map<std::string, size_t> index_;
};

}  // namespace lockstep::checkpoint
