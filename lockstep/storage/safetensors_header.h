// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

/// What a tensor in a safetensors file may be made of, in the order in which the reference
/// implementation lays dtypes out: the last comes first in a file, so that all are aligned.
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

/// "BF16", as files spell it.
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

/// What a file says about itself. `tensors` are in the order of their data.
struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;
  uint64_t data_begin = 0;  ///< Offset of the first data byte in the file.
};

/// A file begins with so many bytes, the length of the header behind them.
constexpr size_t kLengthBytes = 8;
/// No header is longer: the limit of the reference implementation.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// Reads the header of a whole file in memory. CheckpointError, naming `path` and where it can the
/// tensor, unless every byte after the header belongs to exactly one tensor and each tensor's size
/// is that of its shape and dtype.
///
/// Never accepts what the reference implementation (PyPI safetensors 0.8) rejects. Rejects beyond
/// that: names given twice, fields the format does not know, a header that does not begin with `{`,
/// more than 64 dimensions, a shape that without its zeros is one of 2^60 bytes or more, sub-byte
/// dtypes, and a tensor or dtype spelled in a way only that implementation's JSON library knows
/// (`["U8",[1],[0,1]]`, `{"U8":null}`). tests/fuzz/differential.py holds us to both.
/// Allocates no more than a small multiple of the header's real size. Thread-safe.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view file);

/// The same from the beginning of a file of `file_bytes`, as far as its data.
SafetensorsHeader parse_safetensors_header(
    const std::string& path, std::string_view beginning, uint64_t file_bytes);

/// How far that is, from the first kLengthBytes of a file, or from all it has if that is less.
/// CheckpointError if it is too short or claims a header longer than itself or than the limit.
uint64_t safetensors_header_bytes(
    const std::string& path, std::string_view beginning, uint64_t file_bytes);

/// The bytes to put before the data: length, JSON, spaces up to a multiple of 8; what the reference
/// implementation writes for the same tensors. Tensors must be in the order of their data.
/// CheckpointError for a name given twice or reserved, a name or text that is no UTF-8, and for a
/// header over the limit.
std::string render_safetensors_header(const std::string& path, const SafetensorsHeader& header);

/// A text of unknown origin, made fit for one line of an error message: quoted, escaped, cut.
std::string in_quotes(std::string_view text);

}  // namespace lockstep::checkpoint
