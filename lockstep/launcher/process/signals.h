// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {

/// Parses a list of signals, like "SIGTERM,INT". Throws ConfigError that names `flag` for a signal
/// that a launcher cannot forward.
std::vector<int> parse_signals(const std::string& text, const std::string& flag);

/// Receives the signals that a launcher forwards to its ranks, so that they do not end it.
///
/// These are SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2. An ignored SIGHUP stays ignored
/// (nohup). SIGTSTP (Ctrl-Z) is received, too, unless it was ignored: the receiver then calls
/// stop_this_process().
/// SIGPIPE and SIGXFSZ are ignored, so that a write returns EPIPE or EFBIG; an ignored SIGCHLD is
/// reset, since exit statuses would be lost.
///
/// The signals are blocked in the calling thread, which reads them, for the object's life. In other
/// threads a handler forwards them to this one. One inbox at a time in a process.
class SignalInbox {
 public:
  /// Receives `wanted_signals` and SIGTSTP; all of the above if `wanted_signals` is empty.
  explicit SignalInbox(const std::vector<int>& wanted_signals = {});
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  /// Returns the descriptor that is readable while a signal is pending.
  int fd() const { return fd_.get(); }
  /// Returns the next pending signal, if there is one.
  std::optional<int> next();
  /// Stops this process, as the default SIGTSTP does, and returns after SIGCONT. Returns at once if
  /// a signal that ends the job waits to be read, or if the kernel does not stop the process, since
  /// no shell would continue it (POSIX: an orphaned process group).
  static void stop_this_process();

 private:
  UniqueFd fd_;
  sigset_t previous_mask_{};
  std::vector<std::pair<int, struct sigaction>> previous_;
};

}  // namespace lockstep::launcher
