// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// Computes the CRC-32C of `size` bytes at `data`, continued from `previous`; start with 0.
///
/// The polynomial is Castagnoli's, as in iSCSI, ext4 and TFRecord. crc32c(crc32c(0, a), b) is the
/// checksum of a followed by b.
///
/// Uses SSE4.2 where the processor has it (several GB/s), tables elsewhere (about 1 GB/s).
/// Thread-safe, never throws.
uint32_t crc32c(uint32_t previous, const void* data, size_t size);

inline uint32_t crc32c(std::string_view bytes) {
  return crc32c(0, bytes.data(), bytes.size());
}

/// Returns the form that TFRecord stores: a checksum of data that holds checksums stays a good one.
constexpr uint32_t masked_crc32c(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

namespace detail {

/// Computes the same checksum by tables, or by an instruction, which needs
/// have_crc32c_instruction().
uint32_t crc32c_by_table(uint32_t previous, const void* data, size_t size);
uint32_t crc32c_by_instruction(uint32_t previous, const void* data, size_t size);
bool have_crc32c_instruction();

}  // namespace detail
}  // namespace lockstep
