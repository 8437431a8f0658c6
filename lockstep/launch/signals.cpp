// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/signals.h"

#include <cerrno>
#include <cstring>
#include <sys/signalfd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

SignalInbox::SignalInbox() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    // Blocked, an ignored signal would be queued all the same.
    if (signal != SIGHUP || action.sa_handler != SIG_IGN) {
      sigaddset(&wanted, signal);
    }
  }
  ::sigprocmask(SIG_BLOCK, &wanted, &previous_mask_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &previous_pipe_);
  fd_.reset(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.is_open()) {
    throw Error(
        "lockstep launch", fmt::format("signals cannot be received; {}", std::strerror(errno)));
  }
}

SignalInbox::~SignalInbox() {
  ::sigaction(SIGPIPE, &previous_pipe_, nullptr);
  ::sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
}

std::optional<int> SignalInbox::next() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof(info)) != sizeof(info)) {
    return std::nullopt;
  }
  return static_cast<int>(info.ssi_signo);
}

}  // namespace lockstep::launcher
