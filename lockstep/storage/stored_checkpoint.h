// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors_map.h"

namespace lockstep::checkpoint {

/// How much opening a checkpoint proves.
enum class Verify {
  /// That it has a valid manifest.
  kManifest,
  /// Every file of the manifest is there, a regular file, with its size; and meta, if it is a saved
  /// state's, makes sense. Reads none.
  kSizes,
  /// Every file has the content that was written, and all of them fit together, see
  /// find_structural_faults. Reads everything once.
  kFull,
};

/// A checkpoint that a Writer has committed; local, each rank opens its own.
///
/// Trusts the manifest alone: what it does not list does not exist here, symbolic links among the
/// files are refused, and whatever a method hands out has had its checksum compared first.
///
/// Thread safety: immutable.
class StoredCheckpoint {
 public:
  /// CheckpointError, naming the file, unless the folder holds a valid manifest and passes
  /// `verify`.
  explicit StoredCheckpoint(const std::filesystem::path& path, Verify verify = Verify::kSizes);

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const nlohmann::json& meta() const { return manifest_.meta; }
  int world_size() const { return manifest_.world_size; }
  int64_t sequence() const { return manifest_.sequence; }
  bool has(const std::string& file_name) const;
  /// Names of the files, sorted.
  std::vector<std::string> files() const;
  /// CheckpointError if there is no such file.
  const FileRecord& record(const std::string& file_name) const;

  /// A file of tensors whose header is what was written, proven from the header and the manifest
  /// alone. CheckpointError if it is not, or if the manifest has other tensors. The content is for
  /// verify_tensor to prove, before it is used.
  SafetensorsMap open_tensors(const std::string& file_name) const;
  /// The same with its content proven, too: reads all of it. CheckpointError, naming the tensor
  /// where one is to blame.
  SafetensorsMap tensor_map(const std::string& file_name) const;
  /// The same for a JSON file.
  nlohmann::json json(const std::string& file_name) const;
  /// Compares one file with what was written, without handing it out or mapping it.
  void verify_content(const FileRecord& record) const;

 private:
  std::filesystem::path path_;
  Manifest manifest_;
};

/// Compares one tensor of a file with what was written, as `record`, the file's, has it.
/// CheckpointError, naming the tensor, if it is damaged or cannot be read. Reads its bytes once.
void verify_tensor(const SafetensorsMap& file, const TensorEntry& entry, const FileRecord& record);

}  // namespace lockstep::checkpoint
