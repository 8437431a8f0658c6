// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/signals.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <sys/signalfd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr std::array kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

}  // namespace

std::vector<int> parse_signals(const std::string& text, const std::string& flag) {
  std::vector<int> signals;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    const auto found = std::find_if(kPassedOn.begin(), kPassedOn.end(), [&](int signal) {
      return name == sigabbrev_np(signal) || name == std::string("SIG") + sigabbrev_np(signal);
    });
    if (found == kPassedOn.end()) {
      throw ConfigError(
          "lockstep launch",
          fmt::format(
              "{} names '{}', which cannot be passed on; expected some of SIGTERM, SIGINT, SIGHUP, "
              "SIGQUIT, SIGUSR1 and SIGUSR2, with commas between",
              flag,
              name));
    }
    signals.push_back(*found);
  }
  return signals;
}

SignalInbox::SignalInbox(const std::vector<int>& wanted_signals) {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : kPassedOn) {
    if (!wanted_signals.empty() &&
        std::find(wanted_signals.begin(), wanted_signals.end(), signal) == wanted_signals.end()) {
      continue;
    }
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
  ::sigaction(SIGXFSZ, &ignore, &previous_size_);
  fd_.reset(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.is_open()) {
    throw Error(
        "lockstep launch", fmt::format("signals cannot be received; {}", std::strerror(errno)));
  }
}

SignalInbox::~SignalInbox() {
  ::sigaction(SIGXFSZ, &previous_size_, nullptr);
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
