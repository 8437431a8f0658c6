// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/program/stop_request.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

class StopRequestsTest : public testing::Test {
 protected:
  ~StopRequestsTest() override { StopRequests::clear(); }
};

TEST_F(StopRequestsTest, NotesASignalThatWouldHaveEndedTheProcess) {
  for (int signal : {SIGTERM, SIGUSR1}) {
    const StopRequests requests;
    EXPECT_EQ(StopRequests::signal_received(), 0);
    std::raise(signal);
    EXPECT_EQ(StopRequests::signal_received(), signal);
    StopRequests::clear();
  }
}

TEST_F(StopRequestsTest, RestoresTheHandlersWithTheLastOne) {
  {
    const StopRequests outer;
    { const StopRequests inner; }
    std::raise(SIGUSR1);
  }
  struct sigaction present {};
  sigaction(SIGUSR1, nullptr, &present);
  EXPECT_EQ(present.sa_handler, SIG_DFL);
}

TEST_F(StopRequestsTest, DoesNotReplaceTheProgramsHandler) {
  static volatile std::sig_atomic_t seen = 0;
  std::signal(SIGUSR1, [](int) { seen = 1; });
  {
    const StopRequests requests;
    std::raise(SIGUSR1);
    EXPECT_EQ(StopRequests::signal_received(), 0);
  }
  EXPECT_EQ(seen, 1);
  std::raise(SIGUSR1);  // Still the program's.
  std::signal(SIGUSR1, SIG_DFL);
}

TEST_F(StopRequestsTest, ASecondSIGTERMEndsTheProcessUnlessItIsTheSameRequest) {
  EXPECT_EXIT(
      {
        const StopRequests requests;
        std::raise(SIGTERM);
        std::raise(SIGTERM);
        if (StopRequests::signal_received() != SIGTERM) {
          std::_Exit(1);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // Longer than one request.
        std::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM),
      "");
}

}  // namespace
}  // namespace lockstep
