// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/watchdog.h"

#include <csignal>
#include <memory>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

/// A process in its own group that waits for a signal; registered with `watchdog`.
pid_t start_waiting(const Watchdog& watchdog) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    const pid_t self = ::getpid();
    const bool registered =
        ::write(watchdog.registration_fd(), &self, sizeof(self)) == sizeof(self);
    ::close(watchdog.registration_fd());
    if (registered) {
      ::pause();
    }
    ::_exit(1);
  }
  return pid;
}

int signal_that_killed(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(Watchdog, KillsTheGroupsWhenThePipeEnds) {
  auto watchdog = std::make_unique<Watchdog>();
  const pid_t first = start_waiting(*watchdog);
  const pid_t second = start_waiting(*watchdog);
  watchdog.reset();
  EXPECT_EQ(signal_that_killed(first), SIGKILL);
  EXPECT_EQ(signal_that_killed(second), SIGKILL);
}

TEST(Watchdog, KillsNothingOnceDismissed) {
  Watchdog watchdog;
  const pid_t pid = start_waiting(watchdog);
  while (::getpgid(pid) != pid) {
    ::usleep(1000);
  }
  watchdog.dismiss();
  ::kill(-pid, SIGTERM);
  EXPECT_EQ(signal_that_killed(pid), SIGTERM);
}

TEST(Watchdog, LeavesNoProcessBehind) {
  {
    Watchdog watchdog;
    watchdog.dismiss();
  }
  { const Watchdog watchdog; }
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

}  // namespace
}  // namespace lockstep::launcher
