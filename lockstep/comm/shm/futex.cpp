// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/futex.h"

#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::comm::shm {
namespace {

// Without FUTEX_PRIVATE_FLAG, since several processes map the word.
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

uint32_t announce_sleep(Control& mine) {
  mine.sleepers.fetch_add(1, std::memory_order_seq_cst);
  return mine.wake_count.load(std::memory_order_seq_cst);
}

void sleep(Control& mine, uint32_t wake_count, Milliseconds longest) {
  const timespec duration{
      .tv_sec = longest.count() / 1000, .tv_nsec = longest.count() % 1000 * 1'000'000};
  futex(mine.wake_count, FUTEX_WAIT, wake_count, &duration);
}

void end_sleep(Control& mine) {
  mine.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void wake(Control& peer) {
  if (peer.sleepers.load(std::memory_order_seq_cst) == 0) {
    return;
  }
  peer.wake_count.fetch_add(1, std::memory_order_seq_cst);
  futex(peer.wake_count, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace lockstep::comm::shm
