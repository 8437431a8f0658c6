// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/memory/crc32c.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/storage/catalog/catalog.h"
#include "lockstep/storage/file/output_file.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/write/safetensors_writer.h"

namespace lockstep::storage {

inline std::filesystem::path golden_path(const char* name) {
  return std::filesystem::path(LOCKSTEP_SOURCE_DIR "/tests/golden") / name;
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::filesystem::path write_bytes(
    const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// Overwrites in place, since some file systems wait for the disk when a truncated file is
/// rewritten.
inline void flip_bit(const std::filesystem::path& path, size_t byte, int bit = 0) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(byte));
  const int value = file.get();
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(value ^ (1 << bit)));
  if (!file) {
    throw std::runtime_error("no bit to flip in " + path.string());
  }
}

/// Returns the names in a folder, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Updates the checksum in the text of a manifest.
inline std::string with_checksum(std::string text) {
  const std::string before = "\"crc32c\": \"";
  const size_t digits = text.find(before) + before.size();
  const uint32_t crc = lockstep::crc32c(std::string_view(text).substr(digits + 8));
  return text.replace(digits, 8, fmt::format("{:08x}", crc));
}

/// Changes manifest.json, and updates its checksum.
inline void edit_manifest(
    const std::filesystem::path& checkpoint,
    const std::function<void(nlohmann::json& manifest)>& edit) {
  const std::filesystem::path path = checkpoint / kManifestName;
  nlohmann::json manifest = nlohmann::json::parse(read_bytes(path));
  edit(manifest);
  write_bytes(path, with_checksum(manifest.dump(2) + "\n"));
}

/// A tensor of a test, with its elements.
inline OutputTensor output_tensor(
    const std::string& name, Dtype dtype, std::vector<int64_t> shape, const std::string& bytes) {
  return {name, dtype, std::move(shape), [bytes] { return std::string_view(bytes); }};
}

/// Returns elements as the bytes of a file.
template <typename T>
std::string raw_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A file of tensors of a test's checkpoint.
struct TestFile {
  std::vector<OutputTensor> tensors;
  std::map<std::string, std::string> metadata = {};
};

/// Makes a checkpoint as a Writer does, with one JSON file and files of tensors. Replaces an
/// existing folder.
inline void commit_checkpoint(
    const std::filesystem::path& path,
    const nlohmann::json& state,
    const std::map<std::string, TestFile>& files = {}) {
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  Manifest manifest{
      .sequence = next_sequence(path.parent_path()), .world_size = 1, .meta = state, .files = {}};
  for (const auto& [name, file] : files) {
    manifest.files.push_back(
        {name, write_safetensors_file(path / name, file.tensors, file.metadata)});
  }
  OutputFile file(path / "state.json");
  file.append(state.dump());
  file.finish();
  manifest.files.push_back(
      {"state.json", {.bytes = file.bytes(), .crc32c = file.crc32c(), .tensors = {}}});
  write_bytes(path / kManifestName, render_manifest(path, manifest));
}

}  // namespace lockstep::storage
