// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/file/spool.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::tracking {
namespace {

constexpr size_t kPositionDigits = 20;
constexpr size_t kMostBytesRead = size_t{4} << 20;

int64_t file_size(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 ? status.st_size : 0;
}

/// Blocks all signals, so that the program's threads get them, and that writing to a closed pipe
/// is EPIPE.
void block_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Spool::Spool(const std::filesystem::path& path, Options options, Deliver deliver)
    : options_(options), deliver_(std::move(deliver)) {
  file_.open(path);
  reader_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader_.is_open() || ::flock(reader_.get(), LOCK_EX | LOCK_NB) != 0) {
    throw ConfigError(
        path.string(), "another process sends this file; expected a file of this process only");
  }
  const std::string position_path = path.string() + ".sent";
  position_.reset(::open(position_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!position_.is_open()) {
    throw ConfigError(position_path, "cannot open this file; choose a writable folder");
  }
  if (file_.last_byte().value_or('\n') != '\n') {
    file_.append("\n");  // Ends the line that a crash left incomplete.
  }
  size_ = file_size(reader_.get());
  delivered_ = std::min(stored_position(), size_);
  thread_ = std::thread([this] { run(); });
}

Spool::~Spool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Spool::append(std::string_view line) {
  file_.append(std::string(line) + "\n");
  {
    const std::lock_guard lock(mutex_);
    size_ += static_cast<int64_t>(line.size()) + 1;
  }
  changed_.notify_all();
}

bool Spool::wait_until_delivered(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  hurry_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, limit, [&] { return delivered_ == size_ || failed_; });
  return delivered_ == size_;
}

bool Spool::close() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
  file_.close();
  const bool all = delivered_ == size_;
  if (all) {
    std::error_code ignored;
    std::filesystem::remove(path(), ignored);
    std::filesystem::remove(path().string() + ".sent", ignored);
  }
  return all;
}

int64_t Spool::pending_bytes() {
  const std::lock_guard lock(mutex_);
  return size_ - delivered_;
}

void Spool::run() {
  block_signals();
  auto pause = options_.first_pause;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || delivered_ < size_; });
    if (stopping_) {
      return;
    }
    lock.unlock();
    size_t count = 0;
    std::vector<std::string> lines;
    std::string failure;
    try {
      lines = next_lines();
      count = deliver_(lines);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    if (!failure.empty()) {
      log_warning(fmt::format("{}; its lines are kept in {}", failure, path().string()));
    }
    lock.lock();
    count_delivered(lines, count);
    failed_ = !failure.empty();
    changed_.notify_all();
    if (failed_) {
      return;
    }
    if (count > 0) {
      pause = options_.first_pause;
    } else {
      changed_.wait_for(lock, pause, [&] { return stopping_ || hurry_; });
      pause = hurry_ ? options_.first_pause : std::min(2 * pause, options_.max_pause);
      hurry_ = false;
    }
  }
}

std::vector<std::string> Spool::next_lines() {
  std::string bytes;
  std::array<char, 65536> buffer{};
  std::vector<std::string> lines;
  size_t begin = 0;
  while (lines.size() < options_.batch_lines && (lines.empty() || bytes.size() < kMostBytesRead)) {
    const auto from = static_cast<off_t>(delivered_ + static_cast<int64_t>(bytes.size()));
    const ssize_t got = ::pread(reader_.get(), buffer.data(), buffer.size(), from);
    if (got <= 0) {
      break;
    }
    bytes.append(buffer.data(), static_cast<size_t>(got));
    for (size_t end = 0; lines.size() < options_.batch_lines &&
                         (end = bytes.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      lines.push_back(bytes.substr(begin, end - begin));
    }
  }
  if (lines.empty()) {
    throw Error(path().string(), "cannot be read, or was truncated by another program");
  }
  return lines;
}

void Spool::count_delivered(const std::vector<std::string>& lines, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    delivered_ += static_cast<int64_t>(lines[i].size()) + 1;
  }
  if (count > 0) {
    store_position();
  }
}

int64_t Spool::stored_position() const {
  std::array<char, kPositionDigits + 1> digits{};
  if (::pread(position_.get(), digits.data(), kPositionDigits, 0) <= 0) {
    return 0;
  }
  const std::string text = digits.data();
  return parse_integer(text.substr(std::min(text.find_first_not_of('0'), text.size() - 1)))
      .value_or(0);
}

void Spool::store_position() const {
  const std::string digits = fmt::format("{:020}", delivered_);
  if (::pwrite(position_.get(), digits.data(), digits.size(), 0) < 0) {
    log_warning(fmt::format(
        "{}.sent cannot be written; a later process may send lines again", path().string()));
  }
}

}  // namespace lockstep::tracking
