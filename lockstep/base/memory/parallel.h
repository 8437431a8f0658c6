// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace lockstep {

/// Calls `body` once for each index below `count`, on up to `threads` threads.
///
/// The caller's thread is one of them; all have the caller's rank label. Threads take indices in
/// order, one at a time. Throws the first exception of a `body`; indices not started by then are
/// skipped. For work of milliseconds: threads are created on each call.
void for_each_index(size_t count, int threads, const std::function<void(size_t index)>& body);

}  // namespace lockstep
