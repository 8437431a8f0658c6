// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/crc32c.h"

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

__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(
    uint32_t previous, const void* data, size_t size) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint64_t wide = ~previous;
  for (; size >= sizeof(uint64_t); size -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    wide = _mm_crc32_u64(wide, word);
  }
  auto crc = static_cast<uint32_t>(wide);
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
