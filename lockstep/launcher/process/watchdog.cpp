// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/watchdog.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"

namespace lockstep::launcher {
namespace {

constexpr pid_t kDismissed = 0;

/// Closes all descriptors above `last`, as closefrom() of glibc 2.34.
void close_descriptors_above(int last) {
  if (::syscall(__NR_close_range, last + 1, ~0U, 0) == 0) {
    return;
  }
  std::vector<int> open;  // Linux has close_range since 5.9 only.
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    open.push_back(std::stoi(entry.path().filename()));
  }
  for (const int descriptor : open) {
    if (descriptor > last) {
      ::close(descriptor);
    }
  }
}

[[noreturn]] void watch(int pipe) {
  ::setsid();
  ::prctl(PR_SET_NAME, "lockstep-watch");
  for (int signal = 1; signal < NSIG; ++signal) {
    ::signal(signal, SIG_IGN);
  }
  // Close the launcher's descriptors, since the readers of its output wait for their end.
  ::dup2(pipe, STDIN_FILENO);
  close_descriptors_above(STDIN_FILENO);
  std::vector<pid_t> groups;
  pid_t message = 0;
  for (;;) {
    const ssize_t size = ::read(STDIN_FILENO, &message, sizeof(message));
    if (size == sizeof(message) && message == kDismissed) {
      ::_exit(0);
    }
    if (size == sizeof(message)) {
      groups.push_back(message);
    } else if (size == 0) {
      break;
    }
  }
  for (const pid_t group : groups) {
    ::kill(-group, SIGKILL);
  }
  ::_exit(0);
}

}  // namespace

Watchdog::Watchdog() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(
        "lockstep launch",
        fmt::format("cannot create the pipe for the watchdog: {}", system_error_text(errno)));
  }
  const UniqueFd read_end(ends[0]);
  pipe_.reset(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) {
    throw Error(
        "lockstep launch",
        fmt::format("the watchdog could not be started; {}", std::strerror(errno)));
  }
  if (pid_ == 0) {
    watch(read_end.get());
  }
}

Watchdog::~Watchdog() {
  pipe_.reset();
  if (pid_ > 0) {
    ::waitpid(pid_, nullptr, 0);
  }
}

void Watchdog::dismiss() {
  // The watchdog may have been killed, in which case the write fails.
  [[maybe_unused]] const ssize_t written = ::write(pipe_.get(), &kDismissed, sizeof(kDismissed));
  pipe_.reset();
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace lockstep::launcher
