// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lockstep::storage {

/// Computes crc32c of a followed by b, from crc32c(a), crc32c(b) and the length of b. So one pass
/// gives the checksums of each tensor and of the file. A few microseconds for any length. Never
/// throws. Modelled on zlib's crc32_combine: appending n bytes multiplies by x^8n in GF(2)[x].
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes);

}  // namespace lockstep::storage
