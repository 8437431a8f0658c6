// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/stored_checkpoint.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/json_text.h"
#include "lockstep/storage/saved_meta.h"
#include "lockstep/storage/verify.h"

namespace lockstep::storage {

StoredCheckpoint::StoredCheckpoint(const std::filesystem::path& path, Verify verify)
    : path_(path), manifest_(std::make_shared<const Manifest>(read_manifest(path))) {
  if (verify == Verify::kManifest) {
    return;
  }
  for (const FileRecord& record : manifest_->files) {
    const auto [file, bytes] = open_regular(path_ / record.name);
    check_size(path_ / record.name, bytes, record);
  }
  if (is_saved_state(meta())) {
    read_saved_meta(*this);
  }
  if (verify == Verify::kFull) {
    for (const FileRecord& record : manifest_->files) {
      verify_content(path_ / record.name, record);
    }
    const std::vector<CheckpointError> faults = find_structural_faults(*this);
    if (!faults.empty()) {
      throw CheckpointError(faults.front());
    }
  }
}

const nlohmann::json& StoredCheckpoint::meta() const {
  return manifest_->meta;
}

int StoredCheckpoint::world_size() const {
  return manifest_->world_size;
}

int64_t StoredCheckpoint::sequence() const {
  return manifest_->sequence;
}

bool StoredCheckpoint::has(const std::string& file_name) const {
  return std::any_of(manifest_->files.begin(), manifest_->files.end(), [&](const auto& record) {
    return record.name == file_name;
  });
}

std::vector<std::string> StoredCheckpoint::files() const {
  std::vector<std::string> names;
  for (const FileRecord& record : manifest_->files) {
    names.push_back(record.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

const FileRecord& StoredCheckpoint::record(const std::string& file_name) const {
  for (const FileRecord& record : manifest_->files) {
    if (record.name == file_name) {
      return record;
    }
  }
  throw CheckpointError(
      path_,
      fmt::format(
          "has no file {}; it has {} others", in_quotes(file_name), manifest_->files.size()));
}

SafetensorsMap StoredCheckpoint::open_tensors(const std::string& file_name) const {
  const FileRecord& wanted = record(file_name);
  SafetensorsMap file(path_ / file_name);
  check_size(file.path(), file.bytes().size(), wanted);
  check_header(file.path(), file.header_bytes(), file.entries(), wanted);
  return file;
}

SafetensorsMap StoredCheckpoint::tensor_map(const std::string& file_name) const {
  SafetensorsMap file = open_tensors(file_name);
  const FileRecord& wanted = record(file_name);
  for (const TensorEntry& entry : file.entries()) {
    verify_tensor(file, entry, wanted);
  }
  return file;
}

nlohmann::json StoredCheckpoint::json(const std::string& file_name) const {
  const FileRecord& wanted = record(file_name);
  const std::filesystem::path path = path_ / file_name;
  const std::string text = read_file(path, wanted.summary.bytes);
  check_size(path, text.size(), wanted);
  check_crc(path, crc32c(text), wanted.summary.crc32c);
  return parse_json(path, text);
}

void verify_tensor(const SafetensorsMap& file, const TensorEntry& entry, const FileRecord& record) {
  const auto known = record.summary.tensors.find(entry.name);
  LOCKSTEP_ASSERT(known != record.summary.tensors.end(), "open_tensors did not compare the header");
  uint32_t crc = 0;
  file.fetch(entry, [&](std::string_view chunk) { crc = crc32c(crc, chunk.data(), chunk.size()); });
  check_crc(file.path(), crc, known->second, entry.name);
}

}  // namespace lockstep::storage
