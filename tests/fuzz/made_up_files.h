// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/memory/crc32c.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/safetensors_header.h"
#include "lockstep/storage/safetensors/slices.h"

namespace lockstep::fuzz {

__extension__ using Wide = unsigned __int128;

/// Reads an input byte by byte, then zeros.
class Bytes {
 public:
  explicit Bytes(std::string_view left) : left_(left) {}
  unsigned next() {
    const unsigned byte = left_.empty() ? 0 : static_cast<unsigned char>(left_.front());
    left_.remove_prefix(left_.empty() ? 0 : 1);
    return byte;
  }
  /// Returns the text before the next NUL, and skips the NUL.
  std::string_view text() {
    const std::string_view text = left_.substr(0, left_.find('\0'));
    left_.remove_prefix(std::min(left_.size(), text.size() + 1));
    return text;
  }
  std::string_view rest() const { return left_; }

 private:
  std::string_view left_;
};

/// An entry of a file, decoded from 1 byte, one for each dimension, and 2 for a slice:
///   bits 0-1 the name, 2-3 the dtype, 4 a slice, 5-6 dimensions, 7 a slice of two dimensions;
///   a dimension is one of kSizes; a slice then has its begin, of kSizes if bit 7 is set; its
///   count.
struct MadeUpEntry {
  std::string name;
  storage::Dtype dtype = storage::Dtype::kU8;
  std::vector<uint64_t> tensor_shape;
  std::vector<uint64_t> shape;  ///< Its own: another one if it is a slice.
  std::optional<uint64_t> begin;
};

/// Saturates at 2^63 instead of wrapping.
inline Wide product(const std::vector<uint64_t>& sizes) {
  Wide product = 1;
  for (const uint64_t size : sizes) {
    product = std::min(product, Wide{1} << 63U) * size;
  }
  return product;
}

inline MadeUpEntry made_up_entry(Bytes& bytes) {
  constexpr std::array<const char*, 4> kNames = {"a", "b", "layer.weight", ""};
  constexpr std::array<storage::Dtype, 4> kDtypes = {
      storage::Dtype::kU8, storage::Dtype::kF16, storage::Dtype::kF32, storage::Dtype::kI64};
  constexpr std::array<uint64_t, 16> kSizes = {
      0,
      1,
      2,
      3,
      4,
      5,
      6,
      8,
      12,
      uint64_t{1} << 31,
      uint64_t{1} << 32,
      uint64_t{1} << 57,
      uint64_t{1} << 60,
      (uint64_t{1} << 63) - 1,
      uint64_t{1} << 63,
      ~uint64_t{0}};
  const unsigned kind = bytes.next();
  MadeUpEntry entry{
      .name = kNames[kind & 3U],
      .dtype = kDtypes[kind >> 2U & 3U],
      .tensor_shape = {},
      .shape = {},
      .begin = {}};
  for (unsigned i = 0; i < (kind >> 5U & 3U); ++i) {
    entry.tensor_shape.push_back(kSizes[bytes.next() & 15U]);
  }
  entry.shape = entry.tensor_shape;
  if ((kind & 16U) != 0) {
    const unsigned begin = bytes.next();
    entry.begin = begin < 128 ? begin : kSizes[begin & 15U];
    entry.shape = {bytes.next() & 63U};
    if ((kind & 128U) != 0) {
      entry.shape.push_back(1);
    }
  }
  return entry;
}

/// A safetensors file, its record in a manifest, and its entries.
struct MadeUpFile {
  std::string text;
  storage::FileSummary summary;
  std::vector<MadeUpEntry> entries;
};

/// Decodes one byte for the number of entries, up to 7, then the entries. Names may be repeated and
/// slices invalid; the layout of the data is always correct, unless it would be too large.
inline MadeUpFile made_up_file(Bytes& bytes) {
  constexpr Wide kMostBytes = 4096;
  MadeUpFile file;
  std::string slices;
  std::string tensors;
  std::string data;
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  for (unsigned left = bytes.next() & 7U; left > 0; --left) {
    const MadeUpEntry& entry = file.entries.emplace_back(made_up_entry(bytes));
    const Wide size = product(entry.shape) * dtype_bytes(entry.dtype);
    const size_t begin = data.size();
    for (Wide i = 0; i < (size > kMostBytes ? 0 : size); ++i) {
      data += static_cast<char>('a' + data.size() % 26);
    }
    file.summary.tensors[entry.name] = crc32c(std::string_view(data).substr(begin));
    tensors += "," + quoted(entry.name) + R"(:{"dtype":")" + dtype_name(entry.dtype) +
               R"(","shape":)" + nlohmann::json(entry.shape).dump() + R"(,"data_offsets":[)" +
               std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
    if (entry.begin) {
      slices += (slices.empty() ? "" : ",") + quoted(entry.name) + R"(:{"begin":)" +
                std::to_string(*entry.begin) + R"(,"shape":)" +
                nlohmann::json(entry.tensor_shape).dump() + "}";
    }
  }
  const std::string metadata =
      slices.empty() ? "" : quoted(storage::kSlicesKey) + ":" + quoted("{" + slices + "}");
  const std::string header = R"({"__metadata__":{)" + metadata + "}" + tensors + "}";
  for (size_t i = 0; i < sizeof(uint64_t); ++i) {
    file.text += static_cast<char>(header.size() >> (8 * i) & 0xffU);
  }
  file.text += header + data;
  file.summary.bytes = file.text.size();
  file.summary.crc32c = crc32c(file.text);
  return file;
}

/// Uses a new inode, since truncating a file makes some file systems wait for the disk.
inline void write_anew(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace lockstep::fuzz
