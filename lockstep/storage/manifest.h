// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::storage {

/// The manifest version that this code writes, and the only one it reads.
constexpr int kFormatVersion = 1;
constexpr const char* kManifestName = "manifest.json";
/// The manifest's `format`.
constexpr const char* kManifestFormat = "lockstep-checkpoint";
/// In the meta of an Accelerator's checkpoint: a random text, equal for ranks that saved together.
constexpr const char* kSaveIdKey = "save_id";
/// Enough for about 600,000 tensors; a longer one is neither written nor read.
constexpr uint64_t kMaxManifestBytes = uint64_t{32} << 20;

/// Size and checksums of a written file, for the manifest.
struct FileSummary {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;                      ///< Checksum of the complete file.
  std::map<std::string, uint32_t> tensors;  ///< Checksums by tensor; empty for other files.
};

/// One file of a checkpoint.
struct FileRecord {
  std::string name;
  FileSummary summary;
};

/// The table of contents that makes a folder a checkpoint: manifest.json, written last.
///
///     {"crc32c": "8 hex digits, of all that follows them", "files": [{"name", "bytes", "crc32c",
///      "tensors": {name: crc32c}}], "format": "lockstep-checkpoint", "meta": {}, "sequence": 1,
///      "version": 1, "world_size": 2}
///
/// Its own checksum covers every byte, so a flipped bit in it is detected as in any other file.
struct Manifest {
  /// Incremented with every commit in a parent folder; the highest is the newest.
  int64_t sequence = 0;
  int world_size = 1;   ///< Number of ranks that saved.
  nlohmann::json meta;  ///< The caller's, an object.
  std::vector<FileRecord> files;
};

/// Throws CheckpointError unless `name` is a valid file name of a checkpoint: no '/', no "..", no
/// leading '.', UTF-8 without control characters, at most 255 bytes, and not manifest.json. `path`
/// is named in the error.
void check_file_name(const std::string& path, const std::string& name);

/// Renders manifest.json.
std::string render_manifest(const std::string& path, const Manifest& manifest);

/// Parses manifest.json strictly. Throws CheckpointError, naming `path`, for an unknown version,
/// with both versions; a missing or unknown key; an invalid or repeated name; a wrong checksum.
Manifest parse_manifest(const std::string& path, const std::string& text);

/// Returns whether parse_manifest refuses `text` because a newer Lockstep wrote it, not for damage.
bool is_newer_manifest(const std::string& path, const std::string& text);

/// Reads `<folder>/manifest.json`. Throws CheckpointError as parse_manifest, and if the file is
/// missing or a symbolic link.
Manifest read_manifest(const std::filesystem::path& folder);
/// Returns whether `folder` has a manifest.json that read_manifest accepts. Other programs have
/// files of that name, too.
bool is_checkpoint(const std::filesystem::path& folder);
/// Returns the error for a folder without a manifest; it says so if DeepSpeed wrote the folder.
CheckpointError not_a_checkpoint(const std::filesystem::path& folder);

/// Converts a record to JSON, for messages between ranks.
nlohmann::json to_json(const FileRecord& record);
FileRecord file_record_from_json(const std::string& path, const nlohmann::json& json);

}  // namespace lockstep::storage
