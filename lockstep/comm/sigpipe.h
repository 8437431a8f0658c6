// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace lockstep::comm {

/// RAII scope: writes to a lost peer give EPIPE instead of SIGPIPE in this thread and threads that
/// it starts. SIGPIPE would end the process silently, and Gloo does not prevent it.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeBlocked() {
    if (sigismember(&before_, SIGPIPE) == 1) {
      return;
    }
    const timespec at_once{};
    while (::sigtimedwait(&sigpipe_, nullptr, &at_once) == SIGPIPE) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t sigpipe_{};
  sigset_t before_{};
};

}  // namespace lockstep::comm
