// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/control_channel.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <sys/epoll.h>
#include <unistd.h>

#include "lockstep/base/env.h"

namespace lockstep::launcher {

ControlChannel::ControlChannel(int command_fd) : command_fd_(command_fd) {
  if (command_fd_ >= 0) {
    reactor_.watch(command_fd_, EPOLLIN, [this](uint32_t /*events*/) { on_ready(); });
  }
}

ControlChannel::~ControlChannel() {
  session_.reset();  // It uses the reactor.
}

void ControlChannel::on_ready() {
  std::array<char, 256> buffer;
  const ssize_t got = ::read(command_fd_, buffer.data(), buffer.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (got <= 0) {
    commands_ended_ = true;
    reactor_.unwatch(command_fd_);
    return;
  }
  read_.append(buffer.data(), static_cast<size_t>(got));
  for (size_t end = read_.find('\n'); end != std::string::npos; end = read_.find('\n')) {
    const std::string line = read_.substr(0, end);
    read_.erase(0, end + 1);
    constexpr const char* kSignal = "signal ";
    if (line.starts_with(kSignal)) {
      const auto signal = parse_integer(line.substr(std::string(kSignal).size()));
      if (signal && *signal > 0 && *signal < NSIG) {
        signals_.push_back(static_cast<int>(*signal));
      }
    }
  }
}

std::optional<int> ControlChannel::next_command() {
  if (signals_.empty()) {
    return std::nullopt;
  }
  const int signal = signals_.front();
  signals_.pop_front();
  return signal;
}

std::optional<std::string> ControlChannel::stop_reason() const {
  if (commands_ended_) {
    return "the launcher that started this one has ended";
  }
  return session_ ? session_->stop() : std::nullopt;
}

}  // namespace lockstep::launcher
