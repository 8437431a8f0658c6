// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace lockstep {

/// Copies like memcpy, for a destination that is not read soon. On x86-64 the copy bypasses the
/// caches, which saves reading the overwritten memory. Two processes that each copied 20 MB from
/// the page cache were 1.7 times as fast as with memcpy. A copy of less than kStreamBytes uses
/// memcpy. Any alignment; the ranges must not overlap. Thread-safe.
void stream_copy(void* to, const void* from, size_t bytes);

/// The size in bytes from which bypassing the caches is faster.
inline constexpr size_t kStreamBytes = size_t{1} << 20;

}  // namespace lockstep
