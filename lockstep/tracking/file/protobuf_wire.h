// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::tracking {

/// Appends `value` to `bytes`, lowest byte first.
template <class Integer>
void append_little_endian(std::string& bytes, Integer value) {
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
}

/// Writes one protobuf message, field by field, in the order of the calls.
///
/// It has no schema: the caller passes field numbers and types. Lockstep has its own writer,
/// because torch's protobuf headers and symbols conflict with Debian's in one program. Source:
/// https://protobuf.dev/programming-guides/encoding
class ProtobufWriter {
 public:
  /// Writes an int32, int64, uint64, bool or enum; a negative number takes ten bytes.
  ProtobufWriter& varint(uint32_t field, int64_t value) {
    key(field, 0);
    raw_varint(static_cast<uint64_t>(value));
    return *this;
  }
  ProtobufWriter& number(uint32_t field, double value) {
    key(field, 1);
    append_little_endian(bytes_, std::bit_cast<uint64_t>(value));
    return *this;
  }
  ProtobufWriter& number(uint32_t field, float value) {
    key(field, 5);
    append_little_endian(bytes_, std::bit_cast<uint32_t>(value));
    return *this;
  }
  /// Writes a string (UTF-8), bytes, or a message inside this one.
  ProtobufWriter& bytes(uint32_t field, std::string_view value) {
    key(field, 2);
    raw_varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtobufWriter& message(uint32_t field, const ProtobufWriter& value) {
    return bytes(field, value.bytes_);
  }

  const std::string& written() const { return bytes_; }

 private:
  void key(uint32_t field, uint32_t wire_type) { raw_varint(field << 3U | wire_type); }
  void raw_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7U) {
      bytes_ += static_cast<char>(static_cast<unsigned char>(value | 0x80U));
    }
    bytes_ += static_cast<char>(static_cast<unsigned char>(value));
  }

  std::string bytes_;
};

}  // namespace lockstep::tracking
