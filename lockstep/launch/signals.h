// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <optional>

#include "lockstep/launch/unique_fd.h"

namespace lockstep::launcher {

/// Receives, instead of dying of them, the signals that a launcher passes on to its ranks: SIGINT,
/// SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2. SIGHUP is left alone when it was ignored (nohup).
/// SIGPIPE is ignored meanwhile, so that a write says EPIPE.
///
/// The signals are blocked in the calling thread for the object's life: make it before other
/// threads.
class SignalInbox {
 public:
  SignalInbox();
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  /// Readable while a signal waits.
  int fd() const { return fd_.get(); }
  /// The next signal that waits, if any.
  std::optional<int> next();

 private:
  UniqueFd fd_;
  sigset_t previous_mask_{};
  struct sigaction previous_pipe_ {};
};

}  // namespace lockstep::launcher
