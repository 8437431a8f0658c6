// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace lockstep {

/// Copies like memcpy, for a destination that is not read soon. On x86-64 the copy bypasses the
/// caches, which saves reading the overwritten memory. Measured at 20 MB a copy, from the page
/// cache, two processes at once: 1.7 times as fast as memcpy. A copy of less than kStreamBytes uses
/// memcpy. Any alignment; the ranges must not overlap. Thread-safe.
void stream_copy(void* to, const void* from, size_t bytes);

/// The size in bytes from which bypassing the caches is faster.
inline constexpr size_t kStreamBytes = size_t{1} << 20;

}  // namespace lockstep
