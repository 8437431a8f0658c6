// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/storage/safetensors/safetensors_map.h"

namespace lockstep::storage {

struct FileRecord;
struct Manifest;

/// The extent of the verification when a checkpoint is opened.
enum class Verify {
  /// It has a valid manifest.
  kManifest,
  /// Also: every file of the manifest exists, is regular, and has its size; and the meta of a saved
  /// state is valid. Reads no file.
  kSizes,
  /// Also: every file has the written content, and all of them fit together, see
  /// find_structural_faults. Reads everything once.
  kFull,
};

/// A checkpoint that a Writer has committed; local, each rank opens it separately.
///
/// Trusts only the manifest. Unlisted files are ignored, symbolic links among the files are
/// refused, and every method compares checksums before it returns data.
///
/// Thread safety: immutable.
class StoredCheckpoint {
 public:
  /// Throws CheckpointError, naming the file, unless the folder holds a valid manifest and passes
  /// `verify`.
  explicit StoredCheckpoint(const std::filesystem::path& path, Verify verify = Verify::kSizes);

  const std::filesystem::path& path() const { return path_; }
  /// Include lockstep/storage/manifest.h to use it.
  const Manifest& manifest() const { return *manifest_; }
  const nlohmann::json& meta() const;
  int world_size() const;
  int64_t sequence() const;
  bool has(const std::string& file_name) const;
  /// Names of the files, sorted.
  std::vector<std::string> files() const;
  /// Throws CheckpointError if the manifest lists no such file.
  const FileRecord& record(const std::string& file_name) const;

  /// Opens a file of tensors with a valid header, verified with the manifest only. Throws
  /// CheckpointError if it is damaged, or the manifest has other tensors. The content must be
  /// verified by verify_tensor before it is used.
  SafetensorsMap open_tensors(const std::string& file_name) const;
  /// Does the same with verified content: reads all of it. Throws CheckpointError, naming the
  /// tensor if possible.
  SafetensorsMap tensor_map(const std::string& file_name) const;
  /// Does the same for a JSON file.
  nlohmann::json json(const std::string& file_name) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const Manifest> manifest_;
};

/// Compares one tensor of a file with the file's `record`. Throws CheckpointError, naming the
/// tensor, if it is damaged or cannot be read. Reads its bytes once.
void verify_tensor(const SafetensorsMap& file, const TensorEntry& entry, const FileRecord& record);

}  // namespace lockstep::storage
