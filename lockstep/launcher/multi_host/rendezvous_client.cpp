// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/rendezvous_client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>

#include "lockstep/launcher/multi_host/rendezvous_listener.h"

namespace lockstep::launcher {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

constexpr auto kRetryInterval = 20ms;
// A host that drops packets does not answer for minutes; another address may answer.
constexpr auto kTryTimeout = 10s;
constexpr size_t kLongestAnswer = 200;

}  // namespace

RendezvousClient::RendezvousClient(
    Reactor& reactor,
    std::vector<Address> addresses,
    std::string token,
    std::string purpose,
    Clock::time_point deadline,
    OnAnswer on_answer)
    : reactor_(reactor),
      addresses_(std::move(addresses)),
      hello_(std::string(kGreeting) + std::move(token) + " " + std::move(purpose) + "\n"),
      deadline_(deadline),
      on_answer_(std::move(on_answer)) {
  timer_ = reactor_.at(Clock::now(), [this] { try_next(); });
}

RendezvousClient::~RendezvousClient() {
  drop();
}

void RendezvousClient::drop() {
  reactor_.cancel(timer_);
  if (fd_.is_open()) {
    reactor_.unwatch(fd_.get());
    fd_.reset();
  }
}

void RendezvousClient::try_next() {
  drop();
  const auto now = Clock::now();
  if (now >= deadline_) {
    finish({.socket = {}, .read = {}, .why = last_failure_});
    return;
  }
  hello_sent_ = false;
  read_.clear();
  const Address& address = addresses_[next_++ % addresses_.size()];
  fd_ = UniqueFd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd_.is_open()) {
    failed(std::strerror(errno));
    return;
  }
  const int on = 1;
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(fd_.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    failed(std::strerror(errno));
    return;
  }
  reactor_.watch(fd_.get(), EPOLLOUT, [this](uint32_t /*events*/) { on_ready(); });
  timer_ = reactor_.at(std::min<Clock::time_point>(now + kTryTimeout, deadline_), [this] {
    last_failure_ = hello_sent_ ? "it accepts connections and sends nothing" : "it does not answer";
    try_next();
  });
}

void RendezvousClient::failed(const std::string& why) {
  drop();
  last_failure_ = why;
  timer_ = reactor_.at(Clock::now() + kRetryInterval, [this] { try_next(); });
}

void RendezvousClient::on_ready() {
  if (!hello_sent_) {
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0 ||
        ::send(fd_.get(), hello_.data(), hello_.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
            static_cast<ssize_t>(hello_.size())) {
      failed(std::strerror(error != 0 ? error : errno));
      return;
    }
    hello_sent_ = true;
    reactor_.change(fd_.get(), EPOLLIN);
    return;
  }
  std::array<char, kLongestAnswer> buffer;
  const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (got <= 0) {
    failed("it accepts connections and closes them");
    return;
  }
  read_.append(buffer.data(), static_cast<size_t>(got));
  const size_t end = read_.find('\n');
  if (end == std::string::npos) {
    if (read_.size() >= kLongestAnswer) {
      failed("the program there is not a Lockstep launcher");
    }
    return;
  }
  const std::string line = read_.substr(0, end);
  if (line == "OK") {
    reactor_.cancel(timer_);
    reactor_.unwatch(fd_.get());
    finish({.socket = std::move(fd_), .read = read_.substr(end + 1), .why = {}});
  } else if (line.starts_with("NO ")) {
    drop();
    finish({.socket = {}, .read = {}, .why = line.substr(3), .final = true});
  } else {
    failed("the program there is not a Lockstep launcher");
  }
}

void RendezvousClient::finish(Answer answer) {
  const OnAnswer on_answer = std::move(on_answer_);
  on_answer(std::move(answer));
}

}  // namespace lockstep::launcher
