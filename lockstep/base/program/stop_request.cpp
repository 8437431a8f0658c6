// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/program/stop_request.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <mutex>

namespace lockstep {
namespace {

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);
std::atomic<int> received = 0;
std::atomic<int64_t> received_ms = 0;

constexpr std::array<int, 2> kSignals = {SIGTERM, SIGUSR1};
/// Batch systems signal every process, and the launcher forwards the signal: signals within this
/// time are one request.
constexpr int64_t kSameRequestMs = 2000;

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// Async-signal-safe: uses clock_gettime, sigaction, raise and lock-free atomics.
void note(int signal) {
  const int64_t now = now_ms();
  if (signal == SIGTERM && received == SIGTERM && now - received_ms >= kSameRequestMs) {
    // A second request means: do not wait for a save.
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(SIGTERM, &plain, nullptr);
    raise(SIGTERM);
    return;
  }
  if (received == 0 || (signal == SIGTERM && received != SIGTERM)) {
    received_ms = now;
    received = signal;
  }
}

struct Installed {
  std::mutex mutex;
  int users = 0;
  std::array<bool, kSignals.size()> ours{};
};

Installed& installed() {
  static Installed state;
  return state;
}

bool is_ours(int signal) {
  struct sigaction present {};
  sigaction(signal, nullptr, &present);
  return (present.sa_flags & SA_SIGINFO) == 0 && present.sa_handler == note;
}

}  // namespace

StopRequests::StopRequests() {
  Installed& state = installed();
  const std::lock_guard<std::mutex> guard(state.mutex);
  if (state.users++ > 0) {
    return;
  }
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction present {};
    sigaction(kSignals[i], nullptr, &present);
    state.ours[i] = (present.sa_flags & SA_SIGINFO) == 0 && present.sa_handler == SIG_DFL;
    if (state.ours[i]) {
      struct sigaction noting {};
      noting.sa_handler = note;
      noting.sa_flags = SA_RESTART;
      sigaction(kSignals[i], &noting, nullptr);
    }
  }
}

StopRequests::~StopRequests() {
  Installed& state = installed();
  const std::lock_guard<std::mutex> guard(state.mutex);
  if (--state.users > 0) {
    return;
  }
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (state.ours[i] && is_ours(kSignals[i])) {  // The program may have replaced the handler.
      struct sigaction plain {};
      plain.sa_handler = SIG_DFL;
      sigaction(kSignals[i], &plain, nullptr);
    }
  }
}

int StopRequests::signal_received() {
  return received;
}

void StopRequests::clear() {
  received = 0;
}

}  // namespace lockstep
