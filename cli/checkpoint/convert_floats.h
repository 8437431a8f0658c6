// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::cli {

/// The value of fp16's or bf16's bits; exact. Not-a-numbers keep their sign and payload.
float value_of_half(uint16_t bits);
float value_of_bfloat16(uint16_t bits);

/// The bits nearest to a value, ties to even, as torch rounds; what is too large becomes infinite.
uint16_t half_of(float value);
uint16_t bfloat16_of(float value);

/// Whether elements of the dtype can be converted, to any other such: F32, F16 and BF16.
bool is_narrow_float(storage::Dtype dtype);

/// Writes `elements` of one such dtype to `to` as those of another. Neither needs be aligned; they
/// must not overlap. Returns how many finite values became infinite.
int64_t convert_floats(
    storage::Dtype from_dtype, std::string_view from, storage::Dtype to_dtype, char* to);

}  // namespace lockstep::cli
