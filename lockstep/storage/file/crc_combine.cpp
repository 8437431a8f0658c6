// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/file/crc_combine.h"

namespace lockstep::storage {
namespace {

// Polynomials over GF(2), modulo that of CRC-32C, bits reversed: the highest bit is x^0.
constexpr uint32_t kModulus = 0x82f63b78U;
constexpr uint32_t kOne = 1U << 31;
constexpr uint32_t kXToThe8 = 1U << 23;

uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) {
      product ^= b;
    }
    b = (b >> 1) ^ ((b & 1U) != 0 ? kModulus : 0U);
  }
  return product;
}

}  // namespace

uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes) {
  uint32_t shift = kOne;
  uint32_t power = kXToThe8;
  for (uint64_t rest = second_bytes; rest != 0; rest >>= 1) {
    if ((rest & 1U) != 0) {
      shift = multiply(power, shift);
    }
    power = multiply(power, power);
  }
  return multiply(shift, first) ^ second;
}

}  // namespace lockstep::storage
