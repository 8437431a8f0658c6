// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target for the safetensors parser. The first byte selects the rest: 0, a complete file;
// else two bytes for the size of the data, then a header, whose correct length is prepended.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/storage/safetensors/safetensors_header.h"
#include "tests/fuzz/require.h"

namespace {

using lockstep::fuzz::require;
using lockstep::storage::SafetensorsHeader;
using lockstep::storage::TensorEntry;

constexpr size_t kLengthBytes = 8;

std::string file_of(std::string_view input) {
  if (input.empty() || input.front() == '\0') {
    return std::string(input.substr(input.empty() ? 0 : 1));
  }
  input.remove_prefix(1);
  size_t data_bytes = 0;
  for (int i = 0; i < 2 && !input.empty(); ++i) {
    data_bytes = data_bytes << 8 | static_cast<unsigned char>(input.front());
    input.remove_prefix(1);
  }
  std::string file;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    file.push_back(static_cast<char>(input.size() >> (8 * i) & 0xffU));
  }
  return file.append(input).append(data_bytes, 'd');
}

/// Counts independently of the parser.
void require_covered_once(const SafetensorsHeader& header, size_t file_bytes) {
  uint64_t next = header.data_begin;
  std::set<std::string> names;
  for (const TensorEntry& entry : header.tensors) {
    require(names.insert(entry.name).second, "a name twice");
    require(entry.name != "__metadata__", "the reserved name");
    require(entry.shape.size() <= 64, "too many dimensions");
    require(header.data_begin + entry.begin == next, "a gap or an overlap");
    next = header.data_begin + entry.end;
    __extension__ unsigned __int128 bytes = dtype_bytes(entry.dtype);
    for (const int64_t size : entry.shape) {
      require(size >= 0, "a negative dimension");
      bytes *= static_cast<uint64_t>(size);
    }
    require(bytes == entry.end - entry.begin, "a tensor whose size is not that of its shape");
  }
  require(next == file_bytes, "bytes at the end that belong to no tensor");
}

void require_equal(const SafetensorsHeader& one, const SafetensorsHeader& other) {
  require(one.metadata == other.metadata, "other metadata after a round trip");
  require(one.tensors.size() == other.tensors.size(), "other tensors after a round trip");
  for (size_t i = 0; i < one.tensors.size(); ++i) {
    const TensorEntry& left = one.tensors[i];
    const TensorEntry& right = other.tensors[i];
    require(
        left.name == right.name && left.dtype == right.dtype && left.shape == right.shape &&
            left.begin == right.begin && left.end == right.end,
        "another tensor after a round trip");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  const std::string file = file_of({reinterpret_cast<const char*>(input), size});
  SafetensorsHeader header;
  try {
    header = lockstep::storage::parse_safetensors_header("the/file", file);
  } catch (const lockstep::CheckpointError& error) {
    lockstep::fuzz::require_fit_to_print(error, "the/file");
    return 0;
  }
  require_covered_once(header, file.size());
  const std::string rendered = lockstep::storage::render_safetensors_header("f", header);
  require(rendered.size() % 8 == 0, "a header that leaves the data unaligned");
  const std::string again = rendered + file.substr(header.data_begin);
  const SafetensorsHeader back = lockstep::storage::parse_safetensors_header("f", again);
  require(back.data_begin == rendered.size(), "data that begins elsewhere");
  require_equal(header, back);
  require(
      lockstep::storage::render_safetensors_header("f", back) == rendered,
      "another header when rendered again");
  return 0;
}
