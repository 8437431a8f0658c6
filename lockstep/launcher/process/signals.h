// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {

/// The signals in `text`, like "SIGTERM,INT"; ConfigError naming `flag` for one that a launcher
/// cannot pass on.
std::vector<int> parse_signals(const std::string& text, const std::string& flag);

/// Receives, instead of dying of them, the signals that a launcher passes on to its ranks: SIGINT,
/// SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2. SIGHUP is left alone when it was ignored (nohup).
/// SIGTSTP (Ctrl-Z) is received, too, unless it was ignored: who gets it calls stop_this_process().
/// SIGPIPE and SIGXFSZ are ignored meanwhile, so that a write says EPIPE, or EFBIG; an ignored
/// SIGCHLD is not, or nobody could learn how a rank ended.
///
/// The signals are blocked in the calling thread for the object's life, which is also who reads
/// them. Where other threads run, a handler in them passes on to this one what they are sent. One
/// inbox at a time in a process.
class SignalInbox {
 public:
  /// `wanted_signals`: some of those; all, if it is empty. The others stay as they were, SIGTSTP
  /// excepted.
  explicit SignalInbox(const std::vector<int>& wanted_signals = {});
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  /// Readable while a signal waits.
  int fd() const { return fd_.get(); }
  /// The next signal that waits, if any.
  std::optional<int> next();
  /// Stops this process, as SIGTSTP does where nobody receives it, and returns after SIGCONT.
  /// Returns at once if the kernel does not stop it, since no shell would continue it (POSIX: an
  /// orphaned process group).
  static void stop_this_process();

 private:
  UniqueFd fd_;
  sigset_t previous_mask_{};
  std::vector<std::pair<int, struct sigaction>> previous_;
};

}  // namespace lockstep::launcher
