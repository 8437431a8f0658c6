// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/stored_checkpoint.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/storage/crc_combine.h"
#include "lockstep/storage/files.h"
#include "lockstep/storage/json_text.h"
#include "lockstep/storage/private_map.h"

namespace lockstep::checkpoint {
namespace {

void check_size(const std::string& path, uint64_t got, const FileRecord& record) {
  if (got != record.summary.bytes) {
    throw CheckpointError(
        path,
        fmt::format(
            "is not the file that was written; got {} bytes, expected {}; try an earlier "
            "checkpoint",
            got,
            record.summary.bytes));
  }
}

void check_crc(
    const std::string& path, uint32_t got, uint32_t expected, const std::string& tensor = "") {
  if (got != expected) {
    throw CheckpointError(
        path,
        fmt::format(
            "is damaged; its content has crc32c {:08x}, expected {:08x}; try an earlier checkpoint",
            got,
            expected),
        tensor.empty() ? tensor : in_quotes(tensor));
  }
}

/// Reads every byte once: the checksum of the file is put together from those of its parts.
void check_tensors(const SafetensorsMap& file, const FileRecord& record) {
  check_size(file.path(), file.bytes().size(), record);
  const auto& expected = record.summary.tensors;
  uint32_t whole = crc32c(file.header_bytes());
  for (const TensorEntry& entry : file.entries()) {
    const std::string_view content = file.bytes(entry);
    const uint32_t crc = crc32c(content);
    whole = crc32c_combine(whole, crc, content.size());
    const auto known = expected.find(entry.name);
    if (known == expected.end()) {
      throw CheckpointError(
          file.path(), "holds a tensor the manifest does not know", in_quotes(entry.name));
    }
    check_crc(file.path(), crc, known->second, entry.name);
  }
  for (const auto& [name, crc] : expected) {
    if (!file.has(name)) {
      throw CheckpointError(file.path(), "lacks a tensor the manifest promises", in_quotes(name));
    }
  }
  check_crc(file.path(), whole, record.summary.crc32c);
}

}  // namespace

StoredCheckpoint::StoredCheckpoint(const std::filesystem::path& path, Verify verify)
    : path_(path), manifest_(read_manifest(path)) {
  for (const FileRecord& record : manifest_.files) {
    const auto [file, bytes] = open_regular(path_ / record.name);
    check_size(path_ / record.name, bytes, record);
  }
  if (verify == Verify::kFull) {
    for (const FileRecord& record : manifest_.files) {
      verify_content(record);
    }
  }
}

bool StoredCheckpoint::has(const std::string& file_name) const {
  return std::any_of(manifest_.files.begin(), manifest_.files.end(), [&](const auto& record) {
    return record.name == file_name;
  });
}

std::vector<std::string> StoredCheckpoint::files() const {
  std::vector<std::string> names;
  for (const FileRecord& record : manifest_.files) {
    names.push_back(record.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

const FileRecord& StoredCheckpoint::record(const std::string& file_name) const {
  for (const FileRecord& record : manifest_.files) {
    if (record.name == file_name) {
      return record;
    }
  }
  throw CheckpointError(
      path_,
      fmt::format(
          "holds no file {}; it holds {} others", in_quotes(file_name), manifest_.files.size()));
}

void StoredCheckpoint::verify_content(const FileRecord& record) const {
  const std::filesystem::path path = path_ / record.name;
  if (!record.summary.tensors.empty()) {
    check_tensors(SafetensorsMap(path), record);
    return;
  }
  const PrivateMap map(path);
  check_size(path, map.bytes().size(), record);
  check_crc(path, crc32c(map.bytes()), record.summary.crc32c);
}

SafetensorsMap StoredCheckpoint::tensor_map(const std::string& file_name) const {
  const FileRecord& wanted = record(file_name);
  SafetensorsMap file(path_ / file_name);
  check_tensors(file, wanted);
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

}  // namespace lockstep::checkpoint
