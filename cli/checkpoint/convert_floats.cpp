// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/convert_floats.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

using storage::Dtype;

constexpr uint32_t kInfinity = 0x7f800000;

template <typename T>
void store(char* data, T value) {
  std::memcpy(data, &value, sizeof(T));
}

float load_float(Dtype dtype, const char* data) {
  switch (dtype) {
    case Dtype::kF16:
      return value_of_half(load<uint16_t>(data));
    case Dtype::kBF16:
      return value_of_bfloat16(load<uint16_t>(data));
    default:
      return load<float>(data);
  }
}

/// Returns whether the stored value is infinite.
bool store_float(Dtype dtype, float value, char* data) {
  switch (dtype) {
    case Dtype::kF16: {
      const uint16_t bits = half_of(value);
      store(data, bits);
      return (bits & 0x7fff) == 0x7c00;
    }
    case Dtype::kBF16: {
      const uint16_t bits = bfloat16_of(value);
      store(data, bits);
      return (bits & 0x7fff) == 0x7f80;
    }
    default:
      store(data, value);
      return std::isinf(value);
  }
}

}  // namespace

float value_of_half(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t exponent = bits >> 10 & 31U;
  const uint32_t mantissa = bits & 1023U;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 31 ? kInfinity : (exponent + 112) << 23;
  return std::bit_cast<float>(sign | wide | mantissa << 13);
}

float value_of_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t half_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  uint32_t rounded = 0;
  if (magnitude > kInfinity) {
    rounded = 0x7e00U | (magnitude >> 13 & 0x3ffU);
  } else if (magnitude >= std::bit_cast<uint32_t>(65520.0F)) {
    rounded = 0x7c00;
  } else if (magnitude < std::bit_cast<uint32_t>(0x1p-14F)) {
    // Floats near 0.5 have steps of 2^-24, fp16's smallest, so the sum is rounded to them.
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    rounded = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5F);
  } else {
    rounded = (magnitude + 0xfffU + (magnitude >> 13 & 1U) - (112U << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | rounded);
}

uint16_t bfloat16_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_number = (bits & 0x7fffffffU) <= kInfinity;
  const uint32_t rounded =
      is_number ? (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16 : bits >> 16 | 0x40U;
  return static_cast<uint16_t>(rounded);
}

bool is_narrow_float(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
}

int64_t convert_floats(Dtype from_dtype, std::string_view from, Dtype to_dtype, char* to) {
  LOCKSTEP_ASSERT(
      is_narrow_float(from_dtype) && is_narrow_float(to_dtype), "expected floats of 16 or 32 bits");
  const size_t width = storage::dtype_bytes(from_dtype);
  const size_t to_width = storage::dtype_bytes(to_dtype);
  int64_t overflows = 0;
  for (size_t at = 0; at < from.size(); at += width, to += to_width) {
    const float value = load_float(from_dtype, from.data() + at);
    if (store_float(to_dtype, value, to) && !std::isinf(value)) {
      ++overflows;
    }
  }
  return overflows;
}

}  // namespace lockstep::cli
