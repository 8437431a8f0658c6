// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/comm/shm/segment.h"

namespace lockstep::comm::shm {

// How a rank sleeps until a peer has done something. The order is what makes it work: a sleeper
// says that it sleeps and then looks once more whether there is anything to do; whoever has done
// something says so and then looks whether anybody sleeps. One of the two sees the other.

/// Between this and the last look before sleep() nothing is missed. Returns what to give sleep().
uint32_t announce_sleep(Control& mine);
/// Sleeps until the bell rings, as long as that at most.
void sleep(Control& mine, uint32_t wake_count, Milliseconds longest);
void end_sleep(Control& mine);
/// Wakes `peer` if it sleeps. After a store with std::memory_order_seq_cst.
void wake(Control& peer);

/// Tells the processor that this is a loop that waits.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep::comm::shm
