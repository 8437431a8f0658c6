// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace lockstep {

/// Calls `body` once for each number below `count`, on up to `threads` threads, the caller's among
/// them, which all speak as the caller's rank. Numbers are taken in order, one at a time, so that
/// uneven ones even out. Throws the first thing a `body` threw; numbers not begun by then are left
/// out. For work of milliseconds: threads are made anew each time.
void for_each_index(size_t count, int threads, const std::function<void(size_t index)>& body);

}  // namespace lockstep
