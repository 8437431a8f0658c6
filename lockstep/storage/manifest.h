// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::checkpoint {

/// The version of the manifest this code writes, and the only one it reads.
constexpr int kFormatVersion = 1;
constexpr const char* kManifestName = "manifest.json";
/// What a manifest says it is.
constexpr const char* kManifestFormat = "lockstep-checkpoint";
/// In the meta of what an Accelerator saves: a random text, the same wherever ranks saved together.
constexpr const char* kSaveIdKey = "save_id";
/// Enough for some 600,000 tensors; a longer one is neither written nor read.
constexpr uint64_t kMaxManifestBytes = uint64_t{32} << 20;

/// What was written, as a manifest wants it.
struct FileSummary {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;                      ///< Of the whole file.
  std::map<std::string, uint32_t> tensors;  ///< Of each tensor's bytes; empty for other files.
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
/// Its own checksum covers every byte, so that a flipped bit in it is seen as in any other file.
struct Manifest {
  int64_t sequence = 0;  ///< Grows with every commit in a parent folder; says which is the newest.
  int world_size = 1;    ///< Ranks that saved.
  nlohmann::json meta;   ///< The caller's, an object.
  std::vector<FileRecord> files;
};

/// Throws CheckpointError unless `name` is a plain file name a checkpoint may hold: no '/', no
/// "..", no '.' in front, UTF-8 without control characters, at most 255 bytes, and not
/// manifest.json. `path` is named in the error.
void check_file_name(const std::string& path, const std::string& name);

/// The text of manifest.json.
std::string render_manifest(const std::string& path, const Manifest& manifest);

/// The strict inverse. CheckpointError, naming `path`, for an unknown version, with both; a key
/// that is missing or not known; a name that is not plain or given twice; a wrong checksum.
Manifest parse_manifest(const std::string& path, const std::string& text);

/// Whether parse_manifest refuses it because a newer Lockstep wrote it, and not for damage.
bool is_newer_manifest(const std::string& path, const std::string& text);

/// Reads `<folder>/manifest.json`. CheckpointError also if there is none, or if it is a symbolic
/// link.
Manifest read_manifest(const std::filesystem::path& folder);
/// What read_manifest throws where there is none; says so if DeepSpeed wrote it.
CheckpointError no_checkpoint(const std::filesystem::path& folder);

/// As JSON, the way ranks tell each other what they wrote.
nlohmann::json to_json(const FileRecord& record);
FileRecord file_record_from_json(const std::string& path, const nlohmann::json& json);

}  // namespace lockstep::checkpoint
