// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/line_forwarder.h"

#include <array>
#include <cerrno>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

namespace lockstep::launcher {

LineForwarder::LineForwarder(
    UniqueFd from, Sink& sink, int source, std::string prefix, size_t kept_lines)
    : from_(std::move(from)),
      sink_(&sink),
      source_(source),
      prefix_(std::move(prefix)),
      kept_lines_(kept_lines) {}

void LineForwarder::copy_to(std::unique_ptr<LogFile> file, Shown shown) {
  file_ = std::move(file);
  shown_ = shown;
}

void LineForwarder::pump() {
  std::array<char, 16384> chunk;
  const ssize_t size = ::read(from_.get(), chunk.data(), chunk.size());
  if (size > 0) {
    take({chunk.data(), static_cast<size_t>(size)});
  } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    finish();
  }
}

void LineForwarder::drain() {
  int bytes = 0;
  ::ioctl(from_.get(), FIONREAD, &bytes);
  std::string rest(static_cast<size_t>(bytes), '\0');
  const ssize_t size = ::read(from_.get(), rest.data(), rest.size());
  if (size > 0) {
    take({rest.data(), static_cast<size_t>(size)});
  }
  finish();
}

void LineForwarder::take(std::string_view bytes) {
  if (file_) {
    file_->write(bytes);
  }
  bytes_ += bytes.size();
  unfinished_ += bytes;
  forward_finished_lines();
}

void LineForwarder::forward_finished_lines() {
  const std::string_view text = unfinished_;
  size_t begin = 0;
  for (size_t end = searched_; end < text.size(); ++end) {
    if (text[end] != '\n' && text[end] != '\r') {
      continue;
    }
    if (text[end] == '\r' && end + 1 < text.size() && text[end + 1] == '\n') {
      ++end;
    }
    forward(text.substr(begin, end + 1 - begin));
    begin = end + 1;
  }
  unfinished_.erase(0, begin);
  if (unfinished_.size() > kLongestLineBytes) {
    forward(unfinished_);
    unfinished_.clear();
  }
  searched_ = unfinished_.size();
}

void LineForwarder::forward(std::string_view line) {
  const bool ends_a_return = after_return_ && line == "\n";
  if (is_shown()) {
    sink_->write(source_, ends_a_return ? "" : prefix_, line);
  }
  after_return_ = line.back() == '\r';
  if (!after_return_ && !ends_a_return) {
    keep_line(line);
  }
}

void LineForwarder::keep_line(std::string_view line) {
  if (kept_lines_ == 0) {
    return;
  }
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) {
    line.remove_suffix(1);
  }
  if (last_lines_.size() == kept_lines_) {
    last_lines_.pop_front();
  }
  last_lines_.emplace_back(line.substr(0, kKeptLineBytes));
  if (line.size() > kKeptLineBytes) {
    last_lines_.back() += "...";
  }
}

void LineForwarder::finish() {
  if (!unfinished_.empty()) {
    forward(unfinished_);
    unfinished_.clear();
  }
  from_.reset();
}

}  // namespace lockstep::launcher
