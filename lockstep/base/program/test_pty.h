// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <csignal>
#include <cstdint>
#include <functional>
#include <poll.h>
#include <pty.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace lockstep {

/// A child process with its own pseudo-terminal, for tests. Functions that wait fail the test after
/// half a minute.
class TestPty {
 public:
  /// Runs `body` in the child, which ends with its return value as exit code.
  explicit TestPty(const std::function<int()>& body, int columns = 80, int rows = 24) {
    winsize size{};
    size.ws_col = static_cast<uint16_t>(columns);
    size.ws_row = static_cast<uint16_t>(rows);
    child_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    if (child_ == 0) {
      ::_exit(body());
    }
    EXPECT_GT(child_, 0);
  }
  ~TestPty() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(terminal_);
  }
  TestPty(const TestPty&) = delete;
  TestPty& operator=(const TestPty&) = delete;

  pid_t pid() const { return child_; }

  void type(const std::string& keys) const {
    EXPECT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  /// Waits until the child has printed `text`, after the text of the previous call.
  void await(const std::string& text) {
    while (true) {
      const size_t at = shown_.find(text, seen_);
      if (at != std::string::npos) {
        seen_ = at + text.size();
        return;
      }
      ASSERT_TRUE(read_more()) << "no '" << text << "' in: " << shown_.substr(seen_);
    }
  }

  /// Returns whether the terminal echoes keys and turns Ctrl-C into a signal, as for a shell.
  bool is_restored() const {
    termios mode{};
    constexpr tcflag_t kUsual = ICANON | ECHO | ISIG;
    return ::tcgetattr(terminal_, &mode) == 0 && (mode.c_lflag & kUsual) == kUsual;
  }

  /// Waits until the child ends; returns its exit code, or 128 + the signal.
  int wait() {
    while (read_more()) {
    }
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  const std::string& shown() const { return shown_; }

 private:
  /// Returns false after the child has ended.
  bool read_more() {
    constexpr int kTimeoutMs = 30'000;
    pollfd item{.fd = terminal_, .events = POLLIN, .revents = 0};
    if (::poll(&item, 1, kTimeoutMs) <= 0) {
      ADD_FAILURE() << "nothing happened for " << kTimeoutMs << " ms: " << shown_;
      ::kill(child_, SIGKILL);
      return false;
    }
    std::array<char, 4096> chunk;
    const ssize_t size = ::read(terminal_, chunk.data(), chunk.size());
    if (size <= 0) {
      return false;
    }
    shown_.append(chunk.data(), static_cast<size_t>(size));
    return true;
  }

  int terminal_ = -1;
  pid_t child_ = -1;
  std::string shown_;
  size_t seen_ = 0;
};

}  // namespace lockstep
