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

/// Returns the number of at most eight bytes, the lowest first.
inline uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
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

/// Reads the fields of one protobuf message in their order.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : rest_(bytes) {}

  /// Reads the next field. Returns false at the end, and if the rest is no field.
  bool next() {
    uint64_t key = 0;
    if (rest_.empty() || !raw_varint(key)) {
      return false;
    }
    field_ = static_cast<uint32_t>(key >> 3U);
    bytes_ = {};
    switch (key & 7U) {
      case 0:
        return raw_varint(bits_);
      case 1:
        return raw_fixed(8);
      case 2:
        return raw_varint(bits_) && raw_bytes(bits_);
      case 5:
        return raw_fixed(4);
      default:
        return false;
    }
  }
  uint32_t field() const { return field_; }
  /// Returns an int32, int64, uint64, bool or enum.
  int64_t varint() const { return static_cast<int64_t>(bits_); }
  float single() const { return std::bit_cast<float>(static_cast<uint32_t>(bits_)); }
  /// Returns a string, bytes, or a message inside this one; empty for a field of another type.
  std::string_view bytes() const { return bytes_; }

 private:
  bool raw_varint(uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80) {
        return true;
      }
    }
    return false;
  }
  bool raw_fixed(size_t size) {
    if (rest_.size() < size) {
      return false;
    }
    bits_ = little_endian(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return true;
  }
  bool raw_bytes(uint64_t size) {
    if (rest_.size() < size) {
      return false;
    }
    bytes_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
  uint32_t field_ = 0;
  uint64_t bits_ = 0;
  std::string_view bytes_;
};

}  // namespace lockstep::tracking
