// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/content_check.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "lockstep/base/memory/crc32c.h"
#include "lockstep/storage/file/crc_combine.h"
#include "lockstep/storage/file/files.h"

namespace lockstep::storage {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;

/// Reads an open file in blocks.
class BlockReader {
 public:
  BlockReader(const std::filesystem::path& path, const Descriptor& file, const ContentWatch& watch)
      : path_(path), file_(file), watch_(watch), block_(kBlockBytes, '\0') {}

  std::string read(uint64_t offset, size_t size) {
    std::string bytes(size, '\0');
    read_at(path_, file_, offset, bytes.data(), size);
    watch_.advance(size);
    return bytes;
  }

  uint32_t crc_of(uint64_t begin, uint64_t end, const std::string& tensor = "") {
    uint32_t crc = 0;
    while (begin < end) {
      const size_t size = std::min<uint64_t>(end - begin, kBlockBytes);
      read_at(path_, file_, begin, block_.data(), size, tensor);
      crc = crc32c(crc, block_.data(), size);
      begin += size;
      watch_.advance(size);
    }
    return crc;
  }

 private:
  const std::filesystem::path& path_;
  const Descriptor& file_;
  const ContentWatch& watch_;
  std::string block_;
};

void check_tensors(
    const std::filesystem::path& path,
    BlockReader& reader,
    const FileRecord& record,
    const ContentWatch& watch) {
  const uint64_t bytes = record.summary.bytes;
  std::string head = reader.read(0, std::min<uint64_t>(bytes, kLengthBytes));
  const uint64_t header_bytes = safetensors_header_bytes(path, head, bytes);
  head += reader.read(head.size(), header_bytes - head.size());
  const SafetensorsHeader header = parse_safetensors_header(path, head, bytes);
  check_header(path, head, header.tensors, record);
  for (const TensorEntry& entry : header.tensors) {
    try {
      const uint64_t begin = header.data_begin + entry.begin;
      const uint64_t end = header.data_begin + entry.end;
      const uint32_t crc = reader.crc_of(begin, end, in_quotes(entry.name));
      check_crc(path, crc, record.summary.tensors.at(entry.name), entry.name);
    } catch (const CheckpointError& error) {
      watch.damaged(entry.name, error);
    }
  }
}

}  // namespace

void check_size(const std::string& path, uint64_t got, const FileRecord& record) {
  if (got != record.summary.bytes) {
    throw CheckpointError(
        path,
        fmt::format(
            "has the wrong size; got {} bytes, expected {}; try an earlier checkpoint",
            got,
            record.summary.bytes));
  }
}

void check_crc(
    const std::string& path, uint32_t got, uint32_t expected, const std::string& tensor) {
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

void check_header(
    const std::string& path,
    std::string_view header,
    const std::vector<TensorEntry>& entries,
    const FileRecord& record) {
  const auto& expected = record.summary.tensors;
  uint32_t file_crc = crc32c(header);
  std::set<std::string_view> found;
  for (const TensorEntry& entry : entries) {
    const auto known = expected.find(entry.name);
    if (known == expected.end()) {
      throw CheckpointError(
          path, "has a tensor that the manifest does not list", in_quotes(entry.name));
    }
    found.insert(entry.name);
    file_crc = crc32c_combine(file_crc, known->second, entry.end - entry.begin);
  }
  for (const auto& [name, crc] : expected) {
    if (!found.contains(name)) {
      throw CheckpointError(path, "lacks a tensor that the manifest lists", in_quotes(name));
    }
  }
  check_crc(path, file_crc, record.summary.crc32c);
}

void check_content(
    const std::filesystem::path& path, const FileRecord& record, const ContentWatch& watch) {
  const auto [file, bytes] = open_regular(path);
  check_size(path, bytes, record);
  BlockReader reader(path, file, watch);
  if (record.summary.tensors.empty()) {
    check_crc(path, reader.crc_of(0, bytes), record.summary.crc32c);
  } else {
    check_tensors(path, reader, record, watch);
  }
}

}  // namespace lockstep::storage
