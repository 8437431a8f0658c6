// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/sink.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <poll.h>
#include <unistd.h>

namespace lockstep::launcher {
namespace {

constexpr size_t kFullBytes = size_t{1} << 20;
constexpr int kNone = -1;

bool takes_a_write(int fd) {
  pollfd item{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&item, 1, 0) == 1;
}

}  // namespace

void Sink::write(int source, std::string_view prefix, std::string_view text) {
  if (error_ != 0 || text.empty()) {
    return;
  }
  if (bar_ != nullptr) {
    if (*bar_ && text.back() != '\r') {
      text_ += "\r\x1b[K";
    }
    *bar_ = text.back() == '\r';
  }
  const bool continues = unfinished_source_ == source;
  if (unfinished_source_ != kNone && !continues) {
    text_ += '\n';
  }
  if (!continues) {
    text_ += prefix;
  }
  text_ += text;
  const bool finished = text.back() == '\n' || text.back() == '\r';
  unfinished_source_ = finished ? kNone : source;
}

void Sink::flush() {
  while (!empty() && takes_a_write(fd_)) {
    // A pipe that is ready takes PIPE_BUF bytes without blocking, but perhaps no more.
    const size_t size = std::min<size_t>(waiting_bytes(), PIPE_BUF);
    const ssize_t written = ::write(fd_, text_.data() + written_, size);
    if (written >= 0) {
      written_ += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      error_ = errno;
      written_ = text_.size();
    }
  }
  if (empty() || written_ > kFullBytes) {
    text_.erase(0, written_);
    written_ = 0;
  }
}

bool Sink::full() const {
  return waiting_bytes() > kFullBytes;
}

}  // namespace lockstep::launcher
