// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/comm/shm/segment.h"

namespace lockstep::comm::shm {

// Implements futex wait and wake between ranks. A sleeper announces its sleep and then checks once
// more for work; a waker publishes its work and then checks for sleepers. One of the two sees the
// other.

/// Announces a sleep, so that no wake between this call and sleep() is lost. Returns the argument
/// of sleep().
uint32_t announce_sleep(Control& mine);
/// Sleeps until a wake, for at most `longest`.
void sleep(Control& mine, uint32_t wake_count, Milliseconds longest);
/// Ends the announcement.
void end_sleep(Control& mine);
/// Wakes `peer` if it sleeps. Call it after a store with std::memory_order_seq_cst.
void wake(Control& peer);

/// Hints to the processor that this is a spin loop.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep::comm::shm
