// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::storage {

/// The dtypes of a safetensors file, in the reference implementation's order. A file has the last
/// ones first, so that all tensors are aligned.
enum class Dtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// Returns the file's spelling, such as "BF16".
const char* dtype_name(Dtype dtype);
size_t dtype_bytes(Dtype dtype);

/// One tensor of a file. `begin` and `end` count bytes from the first byte after the header.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// The content of a header. `tensors` are in the order of their data.
struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;
  uint64_t data_begin = 0;  ///< Offset of the first data byte in the file.
};

/// The number of bytes at the start of a file that hold the header's length.
constexpr size_t kLengthBytes = 8;
/// The reference implementation's limit of a header's length.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// Parses the header of a complete file in memory. Throws CheckpointError, naming `path` and if
/// possible the tensor, unless every byte after the header belongs to exactly one tensor and each
/// tensor's size matches its shape and dtype.
///
/// Never accepts files that the reference implementation (PyPI safetensors 0.8) rejects. Also
/// rejects: repeated names, unknown fields, a header that does not begin with `{`, more than 64
/// dimensions, a shape that without its zeros has 2^60 bytes or more, and sub-byte dtypes. Rejects
/// spellings that only that implementation's JSON library accepts: `["U8",[1],[0,1]]`,
/// `{"U8":null}`. The test tests/fuzz/differential.py compares both implementations. Allocates at
/// most a small multiple of the header's real size. Thread-safe.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view file);

/// Does the same for the beginning of a file of `file_bytes`, up to its data.
SafetensorsHeader parse_safetensors_header(
    const std::string& path, std::string_view beginning, uint64_t file_bytes);

/// Returns the length of the part before the data, read from the first kLengthBytes of a file.
/// Throws CheckpointError if the file is shorter, or claims a header longer than the file or than
/// the limit.
uint64_t safetensors_header_bytes(
    const std::string& path, std::string_view beginning, uint64_t file_bytes);

/// Renders the bytes before the data: length, JSON, spaces up to a multiple of 8, as the reference
/// implementation does. Tensors must be in the order of their data. Throws CheckpointError for a
/// repeated or reserved name, text that is not UTF-8, and a header over the limit.
std::string render_safetensors_header(const std::string& path, const SafetensorsHeader& header);

/// Makes a text of unknown origin safe for one line of an error message: quoted, escaped,
/// shortened.
std::string in_quotes(std::string_view text);

}  // namespace lockstep::storage
