// SPDX-License-Identifier: Apache-2.0
#include "cli/config/terminal_mode.h"

#include <array>
#include <atomic>
#include <csignal>

namespace lockstep::cli {
namespace {

constexpr std::array<int, 4> kTerminationSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

/// The state that the signal handler needs.
struct Terminal {
  std::atomic<int> fd = -1;  ///< -1: nothing to restore.
  termios before{};
  std::array<struct sigaction, kTerminationSignals.size()> handlers{};
};

Terminal& terminal() {
  static Terminal instance;
  return instance;
}

void restore_and_end(int signal) {
  const int fd = terminal().fd.load();
  if (fd >= 0) {
    ::tcsetattr(fd, TCSANOW, &terminal().before);
  }
  // SA_RESETHAND has restored the default action, which takes effect after this handler returns.
  ::raise(signal);
}

}  // namespace

TerminalMode::TerminalMode(int fd, Input input)
    : fd_(fd), input_(input), is_terminal_(::tcgetattr(fd, &before_) == 0) {
  enter();
}

TerminalMode::~TerminalMode() {
  leave();
}

void TerminalMode::suspend() {
  leave();
  ::raise(SIGTSTP);
  enter();
}

void TerminalMode::enter() {
  if (!is_terminal_) {
    return;
  }
  Terminal& shared = terminal();
  shared.before = before_;
  shared.fd.store(fd_);
  struct sigaction action {};
  action.sa_handler = restore_and_end;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (size_t i = 0; i < kTerminationSignals.size(); ++i) {
    ::sigaction(kTerminationSignals[i], nullptr, &shared.handlers[i]);
    if (shared.handlers[i].sa_handler == SIG_DFL) {
      ::sigaction(kTerminationSignals[i], &action, nullptr);
    }
  }
  termios mode = before_;
  mode.c_lflag &= ~static_cast<tcflag_t>(ISIG);
  if (input_ == Input::kKeys) {
    mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    mode.c_cc[VMIN] = 1;
    mode.c_cc[VTIME] = 0;
  } else {
    mode.c_cc[VEOL] = kCtrlC;
    mode.c_cc[VEOL2] = kCtrlZ;
  }
  ::tcsetattr(fd_, TCSADRAIN, &mode);
}

void TerminalMode::leave() {
  if (!is_terminal_) {
    return;
  }
  ::tcsetattr(fd_, TCSADRAIN, &before_);
  Terminal& shared = terminal();
  shared.fd.store(-1);
  for (size_t i = 0; i < kTerminationSignals.size(); ++i) {
    ::sigaction(kTerminationSignals[i], &shared.handlers[i], nullptr);
  }
}

}  // namespace lockstep::cli
