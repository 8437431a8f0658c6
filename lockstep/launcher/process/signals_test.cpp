// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/signals.h"

#include <atomic>
#include <poll.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

TEST(SignalInbox, ReceivesFatalSignals) {
  SignalInbox inbox;
  EXPECT_EQ(inbox.next(), std::nullopt);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    ::raise(signal);
    pollfd item{.fd = inbox.fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&item, 1, 0), 1);
    EXPECT_EQ(inbox.next(), signal);
  }
  EXPECT_EQ(inbox.next(), std::nullopt);
}

TEST(SignalInbox, ReceivesSignalsOfOtherThreads) {
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) {
      std::this_thread::yield();
    }
  });
  {
    SignalInbox inbox;
    // The only thread that does not block it.
    ::pthread_kill(other.native_handle(), SIGTERM);
    pollfd item{.fd = inbox.fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&item, 1, 10'000), 1);
    EXPECT_EQ(inbox.next(), SIGTERM);
  }
  done = true;
  other.join();
  struct sigaction action {};
  ::sigaction(SIGTERM, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

TEST(SignalInbox, HangupStaysIgnoredUnderNohup) {
  ::signal(SIGHUP, SIG_IGN);
  {
    SignalInbox inbox;
    ::raise(SIGHUP);
    EXPECT_EQ(inbox.next(), std::nullopt);
  }
  ::signal(SIGHUP, SIG_DFL);
}

/// The terminal's user presses Ctrl-Z, and a shell continues the job.
TEST(SignalInbox, ReceivesCtrlZAndStopsWhenItsOwnerIsReady) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);  // The parent is in another group, so this group is not orphaned.
    SignalInbox inbox({SIGTERM});
    ::raise(SIGTSTP);
    if (inbox.next() != SIGTSTP) {
      ::_exit(1);
    }
    SignalInbox::stop_this_process();
    ::raise(SIGTSTP);
    ::_exit(inbox.next() == SIGTSTP ? 75 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status)) << status;
  EXPECT_EQ(WSTOPSIG(status), SIGTSTP);
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 75);
}

/// `kill %1` of a job that the shell takes for stopped, before the launcher has stopped itself.
TEST(SignalInbox, DoesNotStopWhenASignalThatEndsTheJobWaits) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    SignalInbox inbox({SIGTERM});
    ::raise(SIGTERM);
    ::raise(SIGCONT);
    SignalInbox::stop_this_process();
    ::_exit(inbox.next() == SIGTERM && inbox.next() == std::nullopt ? 75 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ::kill(child, SIGKILL);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 75);
}

TEST(SignalInbox, CtrlZStaysIgnored) {
  ::signal(SIGTSTP, SIG_IGN);
  {
    SignalInbox inbox;
    ::raise(SIGTSTP);
    EXPECT_EQ(inbox.next(), std::nullopt);
  }
  ::signal(SIGTSTP, SIG_DFL);
}

TEST(SignalInbox, RestoresThePreviousHandlers) {
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, nullptr, &before);
  { const SignalInbox inbox; }
  sigset_t after;
  ::sigprocmask(SIG_BLOCK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
  struct sigaction pipe {};
  ::sigaction(SIGPIPE, nullptr, &pipe);
  EXPECT_EQ(pipe.sa_handler, SIG_DFL);
}

TEST(SignalInbox, ReceivesThoseAskedForOnly) {
  const SignalInbox inbox({SIGTERM});
  sigset_t blocked;
  ::sigprocmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 1);
  EXPECT_EQ(sigismember(&blocked, SIGUSR1), 0);
}

TEST(ParseSignals, TakesNamesWithAndWithoutSig) {
  EXPECT_THAT(parse_signals("SIGTERM,USR1", "--f"), testing::ElementsAre(SIGTERM, SIGUSR1));
  EXPECT_THAT(parse_signals("", "--f"), testing::IsEmpty());
  for (const char* text : {"SIGKILL", "15", "term", "SIG"}) {
    EXPECT_THAT(
        [&] { parse_signals(text, "--f"); },
        testing::ThrowsMessage<ConfigError>(
            testing::HasSubstr("invalid value '" + std::string(text) + "' for --f; expected")))
        << text;
  }
}

}  // namespace
}  // namespace lockstep::launcher
