// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lockstep {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78U;  // 0x1EDC6F41, bits reversed.
constexpr size_t kSlices = 8;

using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
    }
    tables[0][byte] = crc;
  }
  for (size_t slice = 1; slice < kSlices; ++slice) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = (before >> 8) ^ tables[0][before & 0xffU];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

// Polynomials over GF(2), modulo that of CRC-32C, bits reversed: the highest bit is x^0.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) {
      product ^= b;
    }
    b = (b >> 1) ^ ((b & 1U) != 0 ? kPolynomial : 0U);
  }
  return product;
}

/// The effect of appending zero bytes to the data of a checksum, as one table for each byte.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

constexpr Shift make_shift(size_t bytes) {
  uint32_t factor = 1U << 31;
  uint32_t power = 1U << 23;  // x^8
  for (size_t rest = bytes; rest != 0; rest >>= 1) {
    if ((rest & 1U) != 0) {
      factor = multiply(factor, power);
    }
    power = multiply(power, power);
  }
  Shift shift{};
  for (uint32_t place = 0; place < 4; ++place) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      shift[place][byte] = multiply(factor, byte << (8 * place));
    }
  }
  return shift;
}

// Long lanes, whose joining costs almost nothing, and short ones for the rest.
constexpr size_t kLongLane = 8192;
constexpr size_t kShortLane = 256;
constexpr Shift kLongShift = make_shift(kLongLane);
constexpr Shift kShortShift = make_shift(kShortLane);

uint32_t shifted(const Shift& shift, uint32_t crc) {
  return shift[0][crc & 0xffU] ^ shift[1][(crc >> 8) & 0xffU] ^ shift[2][(crc >> 16) & 0xffU] ^
         shift[3][crc >> 24];
}

uint32_t load_little_endian(const unsigned char* bytes) {
  return static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8 |
         static_cast<uint32_t>(bytes[2]) << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

}  // namespace

uint32_t crc32c(uint32_t previous, const void* data, size_t size) {
  static const bool instruction = detail::have_crc32c_instruction();
  return instruction ? detail::crc32c_by_instruction(previous, data, size)
                     : detail::crc32c_by_table(previous, data, size);
}

namespace detail {

uint32_t crc32c_by_table(uint32_t previous, const void* data, size_t size) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t crc = ~previous;
  for (; size >= kSlices; size -= kSlices, at += kSlices) {
    const uint32_t low = crc ^ load_little_endian(at);
    const uint32_t high = load_little_endian(at + 4);
    crc = kTables[7][low & 0xffU] ^ kTables[6][(low >> 8) & 0xffU] ^
          kTables[5][(low >> 16) & 0xffU] ^ kTables[4][low >> 24] ^ kTables[3][high & 0xffU] ^
          kTables[2][(high >> 8) & 0xffU] ^ kTables[1][(high >> 16) & 0xffU] ^
          kTables[0][high >> 24];
  }
  for (; size > 0; --size, ++at) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xffU];
  }
  return ~crc;
}

#if defined(__x86_64__)

namespace {

uint64_t load_word(const unsigned char* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/// Processes all complete triples of lanes of `kLane` bytes.
template <size_t kLane>
__attribute__((target("sse4.2"))) uint32_t take_lanes(
    uint32_t crc, const Shift& shift, const unsigned char*& at, size_t& size) {
  for (; size >= 3 * kLane; size -= 3 * kLane, at += 3 * kLane) {
    uint64_t first = crc;
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kLane; i += sizeof(uint64_t)) {
      first = _mm_crc32_u64(first, load_word(at + i));
      second = _mm_crc32_u64(second, load_word(at + kLane + i));
      third = _mm_crc32_u64(third, load_word(at + 2 * kLane + i));
    }
    crc = shifted(shift, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
    crc = shifted(shift, crc) ^ static_cast<uint32_t>(third);
  }
  return crc;
}

}  // namespace

// The instruction has a latency of three cycles and a throughput of one: so three lanes at once.
// The method is that of Mark Adler, crc32c.c.
__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(
    uint32_t previous, const void* data, size_t size) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t crc = take_lanes<kLongLane>(~previous, kLongShift, at, size);
  crc = take_lanes<kShortLane>(crc, kShortShift, at, size);
  uint64_t wide = crc;
  for (; size >= sizeof(uint64_t); size -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    wide = _mm_crc32_u64(wide, load_word(at));
  }
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; --size, ++at) {
    crc = _mm_crc32_u8(crc, *at);
  }
  return ~crc;
}

bool have_crc32c_instruction() {
  return __builtin_cpu_supports("sse4.2") != 0;
}

#else

uint32_t crc32c_by_instruction(uint32_t previous, const void* data, size_t size) {
  return crc32c_by_table(previous, data, size);
}

bool have_crc32c_instruction() {
  return false;
}

#endif

}  // namespace detail
}  // namespace lockstep
