// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::cli {

/// Reads a value from memory of any alignment.
template <typename T>
T load(const char* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

/// Converts the bits of fp16 or bf16 to float32, exactly. NaNs keep their sign and payload.
float value_of_half(uint16_t bits);
float value_of_bfloat16(uint16_t bits);

/// Converts a float32 to the bits of fp16 or bf16, rounded to nearest even as in torch. Values out
/// of range become infinite.
uint16_t half_of(float value);
uint16_t bfloat16_of(float value);

/// Returns whether convert_floats() supports the dtype: F32, F16 or BF16.
bool is_narrow_float(storage::Dtype dtype);

/// Converts the elements in `from` to `to_dtype`, and writes them to `to`. The ranges may have any
/// alignment and must not overlap. Returns the number of finite values that became infinite.
int64_t convert_floats(
    storage::Dtype from_dtype, std::string_view from, storage::Dtype to_dtype, char* to);

}  // namespace lockstep::cli
