// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/base/memory/crc32c.h"
#include "lockstep/data/sample/nested.h"

namespace lockstep::data {

/// Serializes a nested value for another rank of the same program. First come shapes, dtypes,
/// sizes, keys, numbers and strings, then the bytes of the tensors.
class TensorSerializer {
 public:
  /// Throws ConfigError for an undefined tensor, or one that is not strided.
  void tensor(const at::Tensor& tensor);
  void raw(const void* bytes, size_t count);
  /// Returns uint8 [n] on the CPU. Copies each tensor once.
  at::Tensor bytes() const;

 private:
  std::string description_;
  std::vector<at::Tensor> tensors_;
};

/// Deserializes the bytes of a TensorSerializer. The resulting tensors are views of `bytes` and
/// keep it alive.
class TensorDeserializer {
 public:
  explicit TensorDeserializer(at::Tensor bytes);
  at::Tensor tensor();
  void raw(void* bytes, size_t count);

 private:
  at::Tensor bytes_;
  int64_t description_end_ = 0;  ///< End of the description, in bytes.
  int64_t read_ = 0;             ///< Bytes of the description that were read.
  int64_t next_ = 0;             ///< Begin of the next tensor, in bytes.
};

template <Transferable T>
void pack(const T& value, TensorSerializer& serializer) {
  if constexpr (std::is_base_of_v<at::TensorBase, T>) {
    serializer.tensor(value);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    serializer.raw(&value, sizeof(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    pack(static_cast<int64_t>(value.size()), serializer);
    serializer.raw(value.data(), value.size());
  } else if constexpr (nested::Kind<T>::kSequence) {
    pack(static_cast<int64_t>(value.size()), serializer);
    for (const typename T::value_type& item : value) {
      pack(item, serializer);
    }
  } else if constexpr (nested::Kind<T>::kMap) {
    pack(static_cast<int64_t>(value.size()), serializer);
    for (const auto& [key, item] : value) {
      pack(key, serializer);
      pack(item, serializer);
    }
  } else if constexpr (nested::Kind<T>::kOptional) {
    pack(value.has_value(), serializer);
    if (value) {
      pack(*value, serializer);
    }
  } else if constexpr (nested::Kind<T>::kTuple) {
    std::apply([&](const auto&... items) { (pack(items, serializer), ...); }, value);
  } else {
    pack(value.lockstep_fields(), serializer);
  }
}

/// Returns a checksum of a value's description and tensors. Throws as TensorSerializer does.
template <Transferable T>
uint32_t checksum_of(const T& value) {
  TensorSerializer serializer;
  pack(value, serializer);
  const at::Tensor bytes = serializer.bytes();
  return crc32c(0, bytes.const_data_ptr(), bytes.nbytes());
}

template <Transferable T>
void unpack(T& value, TensorDeserializer& deserializer) {
  const auto read_size = [&] {
    int64_t size = 0;
    unpack(size, deserializer);
    return static_cast<size_t>(size);
  };
  if constexpr (std::is_base_of_v<at::TensorBase, T>) {
    value = deserializer.tensor();
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    deserializer.raw(&value, sizeof(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    value.resize(read_size());
    deserializer.raw(value.data(), value.size());
  } else if constexpr (nested::Kind<T>::kSequence) {
    const size_t size = read_size();
    if constexpr (requires { value.resize(size); }) {
      value.resize(size);
    }
    for (size_t i = 0; i < size; ++i) {
      typename T::value_type item{};  // A bool of a vector has no address of its own.
      unpack(item, deserializer);
      value[i] = std::move(item);
    }
  } else if constexpr (nested::Kind<T>::kMap) {
    value.clear();
    for (size_t left = read_size(); left > 0; --left) {
      typename T::key_type key{};
      unpack(key, deserializer);
      unpack(value[key], deserializer);
    }
  } else if constexpr (nested::Kind<T>::kOptional) {
    bool present = false;
    unpack(present, deserializer);
    value.reset();
    if (present) {
      unpack(value.emplace(), deserializer);
    }
  } else if constexpr (nested::Kind<T>::kTuple) {
    std::apply([&](auto&... items) { (unpack(items, deserializer), ...); }, value);
  } else {
    auto fields = value.lockstep_fields();
    unpack(fields, deserializer);
  }
}

}  // namespace lockstep::data
