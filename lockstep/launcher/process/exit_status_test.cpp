// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/exit_status.h"

#include <csignal>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

RankFailure failure_by_signal(int rank, int signal, int order) {
  return {.rank = rank, .exit_status = {.by_signal = true, .value = signal}, .order = order};
}

RankFailure exited(int rank, int code, int order) {
  return {.rank = rank, .exit_status = {.by_signal = false, .value = code}, .order = order};
}

TEST(ExitStatus, ExitCodeIsTheOneAShellWouldGive) {
  EXPECT_EQ((ExitStatus{.by_signal = false, .value = 3}.exit_code()), 3);
  EXPECT_EQ((ExitStatus{.by_signal = true, .value = SIGKILL}.exit_code()), 137);
}

TEST(ExitStatus, DescriptionNamesSignalOrCode) {
  EXPECT_EQ((ExitStatus{.by_signal = false, .value = 3}.description()), "ended with exit code 3");
  EXPECT_EQ(
      (ExitStatus{.by_signal = true, .value = SIGKILL}.description()),
      "was killed by SIGKILL (signal 9)");
  EXPECT_EQ(
      (ExitStatus{.by_signal = true, .value = SIGSEGV, .core_dumped = true}.description()),
      "was killed by SIGSEGV (signal 11, core dumped)");
}

TEST(ExitStatus, SignalsHaveTheNamesOfGlibc) {
  for (int signal = 1; signal <= 31; ++signal) {
    EXPECT_EQ(signal_name(signal), std::string("SIG") + sigabbrev_np(signal));
  }
  EXPECT_EQ(signal_name(0), "signal 0");
  EXPECT_EQ(signal_name(32), "signal 32");
}

TEST(RootCause, ASignalHasPrecedenceOverAnEarlierExitCode) {
  EXPECT_EQ(root_cause({exited(0, 1, 1), failure_by_signal(1, SIGKILL, 2)}).rank, 1);
  EXPECT_EQ(root_cause({exited(0, 1, 1), failure_by_signal(1, SIGSEGV, 1)}).rank, 1);
}

TEST(RootCause, AnAbortHasNoPrecedenceOverAnExitCode) {
  EXPECT_EQ(root_cause({exited(1, 1, 1), failure_by_signal(0, SIGABRT, 2)}).rank, 1);
  EXPECT_EQ(root_cause({failure_by_signal(1, SIGABRT, 1), exited(0, 1, 2)}).rank, 1);
}

TEST(RootCause, ARankThatOnlyLostAnotherIsNotToBlame) {
  RankFailure early = exited(0, 1, 1);
  early.lost_peer = true;
  EXPECT_EQ(root_cause({early, exited(1, 1, 2)}).rank, 1);
  EXPECT_EQ(root_cause({early, failure_by_signal(2, SIGKILL, 3)}).rank, 2);
}

TEST(RootCause, OtherwiseTheEarlierFailureThenTheLowerRankCounts) {
  EXPECT_EQ(root_cause({exited(0, 1, 2), exited(2, 1, 1)}).rank, 2);
  EXPECT_EQ(root_cause({exited(2, 1, 1), exited(1, 5, 1)}).rank, 1);
}

}  // namespace
}  // namespace lockstep::launcher
