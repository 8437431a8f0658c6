// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/signals.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <sstream>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"
#include "lockstep/launcher/process/exit_status.h"

namespace lockstep::launcher {
namespace {

constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr std::array kReceived = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP};

std::atomic<pid_t> receiver = 0;  // The thread of the inbox.
static_assert(std::atomic<pid_t>::is_always_lock_free, "used in a signal handler");

void forward_to_receiver(int signal) {
  const int error = errno;
  ::syscall(SYS_tgkill, ::getpid(), receiver.load(), signal);  // glibc has tgkill since 2.30 only.
  errno = error;
}

bool a_signal_that_ends_the_job_waits() {
  sigset_t pending;
  ::sigpending(&pending);
  return std::ranges::any_of(std::array{SIGINT, SIGTERM, SIGHUP, SIGQUIT}, [&](int signal) {
    return sigismember(&pending, signal) == 1;
  });
}

}  // namespace

std::vector<int> parse_signals(const std::string& text, const std::string& flag) {
  std::vector<int> signals;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    const auto found = std::find_if(kForwarded.begin(), kForwarded.end(), [&](int signal) {
      return name == signal_name(signal) || "SIG" + name == signal_name(signal);
    });
    if (found == kForwarded.end()) {
      throw ConfigError(
          "lockstep launch",
          fmt::format(
              "invalid value '{}' for {}; expected a comma-separated list of SIGTERM, SIGINT, "
              "SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2",
              name,
              flag));
    }
    signals.push_back(*found);
  }
  return signals;
}

SignalInbox::SignalInbox(const std::vector<int>& wanted_signals) {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : kReceived) {
    if (!wanted_signals.empty() && signal != SIGTSTP &&
        std::find(wanted_signals.begin(), wanted_signals.end(), signal) == wanted_signals.end()) {
      continue;
    }
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    // A blocked signal is queued even if it is ignored.
    if ((signal != SIGHUP && signal != SIGTSTP) || action.sa_handler != SIG_IGN) {
      sigaddset(&wanted, signal);
    }
  }
  ::pthread_sigmask(SIG_BLOCK, &wanted, &previous_mask_);
  receiver = static_cast<pid_t>(::syscall(SYS_gettid));
  const auto handle = [this](int signal, void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    struct sigaction previous {};
    ::sigaction(signal, &action, &previous);
    previous_.emplace_back(signal, previous);
  };
  for (const int signal : kReceived) {
    if (sigismember(&wanted, signal) == 1) {
      handle(signal, forward_to_receiver);
    }
  }
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);
  struct sigaction on_child {};
  ::sigaction(SIGCHLD, nullptr, &on_child);
  if (on_child.sa_handler == SIG_IGN || (on_child.sa_flags & SA_NOCLDWAIT) != 0) {
    handle(SIGCHLD, SIG_DFL);
  }
  fd_.reset(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.is_open()) {
    throw Error(
        "lockstep launch", fmt::format("signals cannot be received: {}", system_error_text(errno)));
  }
}

SignalInbox::~SignalInbox() {
  for (const auto& [signal, action] : previous_) {
    ::sigaction(signal, &action, nullptr);
  }
  ::pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

void SignalInbox::stop_this_process() {
  struct sigaction stops {};
  stops.sa_handler = SIG_DFL;
  struct sigaction received {};
  ::sigaction(SIGTSTP, &stops, &received);
  sigset_t only_this;
  sigemptyset(&only_this);
  sigaddset(&only_this, SIGTSTP);
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, &only_this, &blocked);
  // From here on a SIGCONT removes this SIGTSTP, or ends the stop. A shell sends it after the
  // signal that ends a stopped job, so both may have come before.
  ::raise(SIGTSTP);
  if (a_signal_that_ends_the_job_waits()) {
    const timespec at_once{};
    ::sigtimedwait(&only_this, nullptr, &at_once);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &only_this, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  ::sigaction(SIGTSTP, &received, nullptr);
}

std::optional<int> SignalInbox::next() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof(info)) != sizeof(info)) {
    return std::nullopt;
  }
  return static_cast<int>(info.ssi_signo);
}

}  // namespace lockstep::launcher
