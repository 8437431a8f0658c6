// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

/// Reads bytes that Packed has written, from front to back.
class PackedReader {
 public:
  explicit PackedReader(std::string_view bytes) : left_(bytes) {}

  /// Returns the next `size` bytes. Throws Error if fewer are left.
  std::string_view take(uint64_t size) {
    if (size > left_.size()) {
      throw Error("packed value", "the data ends too early");
    }
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  size_t left() const { return left_.size(); }

 private:
  std::string_view left_;
};

/// Serializes a value to bytes for another process of the same program.
///
/// Packable are numbers, enums, plain structs, strings, and vectors of packable values; for tensors
/// see comm/tensor/packed_tensor.h. Specialize it for your own type, with the same two functions.
///
/// Only the same program can read the bytes: they contain neither types nor versions.
template <typename Value, typename Enable = void>
struct Packed {
  static_assert(
      std::is_trivially_copyable_v<Value> && !std::is_pointer_v<Value>,
      "this type cannot be sent to another process; specialize lockstep::Packed for it");

  static void put(const Value& value, std::string& bytes) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(Value));
  }
  static Value take(PackedReader& reader) {
    const std::string_view bytes = reader.take(sizeof(Value));
    Value value;
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
};

template <>
struct Packed<std::string> {
  static void put(const std::string& text, std::string& bytes) {
    Packed<uint64_t>::put(text.size(), bytes);
    bytes += text;
  }
  static std::string take(PackedReader& reader) {
    return std::string(reader.take(Packed<uint64_t>::take(reader)));
  }
};

template <typename Value>
struct Packed<std::vector<Value>> {
  static void put(const std::vector<Value>& values, std::string& bytes) {
    Packed<uint64_t>::put(values.size(), bytes);
    for (const Value& value : values) {
      Packed<Value>::put(value, bytes);
    }
  }
  static std::vector<Value> take(PackedReader& reader) {
    std::vector<Value> values;
    for (uint64_t left = Packed<uint64_t>::take(reader); left > 0; --left) {
      values.push_back(Packed<Value>::take(reader));
    }
    return values;
  }
};

template <typename Value>
std::string pack(const Value& value) {
  std::string bytes;
  Packed<Value>::put(value, bytes);
  return bytes;
}

/// Throws Error unless the bytes are exactly one value.
template <typename Value>
Value unpack(std::string_view bytes) {
  PackedReader reader(bytes);
  Value value = Packed<Value>::take(reader);
  if (reader.left() > 0) {
    throw Error("packed value", "the data has more than one value");
  }
  return value;
}

}  // namespace lockstep
