// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/message_connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>

#include <nlohmann/json.hpp>

namespace lockstep::launcher {
namespace {

// Enough for the records of thousands of ranks; a longer line is not from a launcher.
constexpr size_t kLongestMessage = size_t{16} << 20;

constexpr auto kHeartbeatInterval = std::chrono::milliseconds(500);
constexpr std::chrono::duration<double> kShortestSilence = 4 * kHeartbeatInterval;
constexpr const char* kAlive = "alive";

constexpr const char* kInvalidMessage = "it sent an invalid message";

void keep_alive(int fd) {
  const int on = 1;
  const int idle_seconds = 5;
  const int between_seconds = 5;
  const int tries = 2;
  const unsigned unanswered_ms = 15'000;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof(idle_seconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_seconds, sizeof(between_seconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof(tries));
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof(unanswered_ms));
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

MessageConnection::MessageConnection(
    Reactor& reactor, UniqueFd socket, std::string read, OnMessage on_message, OnEnd on_end)
    : reactor_(reactor),
      fd_(std::move(socket)),
      receive_buffer_(std::move(read)),
      on_message_(std::move(on_message)),
      on_end_(std::move(on_end)) {
  keep_alive(fd_.get());
  reactor_.watch(fd_.get(), EPOLLIN, [this](uint32_t events) { on_ready(events); });
  if (!receive_buffer_.empty()) {
    timer_ = reactor_.at(Clock::now(), [this] { deliver(); });
  }
}

MessageConnection::~MessageConnection() {
  reactor_.cancel(timer_);
  reactor_.cancel(heartbeat_timer_);
  reactor_.unwatch(fd_.get());
  if (alive_ != nullptr) {
    *alive_ = false;
  }
}

void MessageConnection::set_callbacks(OnMessage on_message, OnEnd on_end) {
  on_message_ = std::move(on_message);
  on_end_ = std::move(on_end);
}

void MessageConnection::send(const nlohmann::json& message) {
  if (ended_) {
    return;
  }
  send_buffer_ += message.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
  write_more();
}

void MessageConnection::write_more() {
  while (!send_buffer_.empty()) {
    const ssize_t sent =
        ::send(fd_.get(), send_buffer_.data(), send_buffer_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      break;  // Reading reports the error.
    }
    send_buffer_.erase(0, static_cast<size_t>(sent));
  }
  reactor_.change(fd_.get(), send_buffer_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void MessageConnection::start_heartbeat(double limit_seconds, OnSilence on_silence) {
  silence_limit_ = std::chrono::duration<double>(limit_seconds);
  if (limit_seconds > 0) {
    silence_limit_ = std::max(silence_limit_, kShortestSilence);
  }
  on_silence_ = std::move(on_silence);
  last_received_ = Clock::now();
  heartbeat_due_ = last_received_;
  send_heartbeat();
}

void MessageConnection::pause_heartbeat(bool paused) {
  heartbeat_paused_ = paused;
  last_received_ = Clock::now();
}

void MessageConnection::send_heartbeat() {
  const Clock::time_point now = Clock::now();
  if (now > heartbeat_due_ + kShortestSilence) {
    last_received_ = now;
  }
  const std::chrono::duration<double> silence = now - last_received_;
  if (!heartbeat_paused_ && silence_limit_.count() > 0 && silence >= silence_limit_) {
    const OnSilence on_silence = std::move(on_silence_);
    on_silence(silence.count());  // May destroy this.
    return;
  }
  if (!heartbeat_paused_) {
    send({{kAlive, true}});
  }
  heartbeat_due_ = now + kHeartbeatInterval;
  heartbeat_timer_ = reactor_.at(heartbeat_due_, [this] { send_heartbeat(); });
}

void MessageConnection::on_ready(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    write_more();
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    read_more();
  }
}

void MessageConnection::read_more() {
  std::array<char, 65536> buffer;
  const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (got <= 0) {
    end(got == 0 ? "it closed the connection" : std::strerror(errno));
    return;
  }
  last_received_ = Clock::now();
  receive_buffer_.append(buffer.data(), static_cast<size_t>(got));
  deliver();
}

void MessageConnection::deliver() {
  bool alive = true;
  alive_ = &alive;
  for (size_t at = receive_buffer_.find('\n'); at != std::string::npos;
       at = receive_buffer_.find('\n')) {
    const auto message = nlohmann::json::parse(receive_buffer_.substr(0, at), nullptr, false);
    receive_buffer_.erase(0, at + 1);
    bool understood = message.is_object();
    try {
      if (understood && !message.contains(kAlive)) {
        const OnMessage on_message = on_message_;  // The callback may replace itself.
        on_message(message);
      }
    } catch (const nlohmann::json::exception&) {
      understood = false;
    }
    if (!alive) {
      return;
    }
    if (!understood) {
      alive_ = nullptr;
      end(kInvalidMessage);
      return;
    }
  }
  alive_ = nullptr;
  if (receive_buffer_.size() > kLongestMessage) {
    end(kInvalidMessage);
  }
}

void MessageConnection::end(const std::string& why) {
  ended_ = true;
  reactor_.cancel(heartbeat_timer_);
  reactor_.unwatch(fd_.get());
  const OnEnd on_end = std::move(on_end_);
  on_end(why);
}

}  // namespace lockstep::launcher
