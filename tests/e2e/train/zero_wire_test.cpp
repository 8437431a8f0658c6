// SPDX-License-Identifier: Apache-2.0
//
// The bytes that a step of ZeRO sends, counted by the kernel: two ranks communicate over sockets,
// alone on the loopback interface of their own network namespace.
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/e2e/harness/run_command.h"

namespace lockstep::e2e {
namespace {

constexpr int kWireLayers = 24;

/// Runs a shell script in a network namespace with only the loopback interface.
Outcome run_alone(const std::string& script) {
  return run_command(
      {"sh",
       "-c",
       "PATH=$PATH:/usr/sbin:/sbin; exec unshare --user --map-root-user --net sh -c 'ip link set "
       "lo up && exec \"$@\"' sh " +
           script},
      {"LOCKSTEP_COMM=gloo", "OMP_NUM_THREADS=1", "XDG_CONFIG_HOME=/nonexistent"});
}

/// The minimum for two ranks: each sends half of every all-reduce twice, and half of every
/// all-gather and reduce-scatter once. So both ranks together send `parameters` bytes for each of
/// these.
TEST(ZeroWire, AStepSendsTwoParametersWorthAndInStage3Three) {
  if (const Outcome probe = run_alone("true"); probe.code != 0) {
    GTEST_SKIP() << "no network namespace of our own here: " << probe.err;
  }
  for (const int stage : {0, 1, 2, 3}) {
    const Outcome outcome = run_alone(
        LOCKSTEP_BIN_DIR "/lockstep launch -n 2 --quiet " ZERO_FIXTURE " " + std::to_string(stage) +
        " wire " + std::to_string(kWireLayers));
    ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    std::istringstream words(outcome.out);
    std::string sent;
    std::string of;
    double first = 0;
    double second = 0;
    double third = 0;
    double parameters = 0;
    words >> sent >> first >> second >> third >> of >> parameters;
    ASSERT_EQ(of, "of") << outcome.out;
    ASSERT_GT(parameters, 0);
    const double volume = stage == 3 ? 3 : 2;
    // Up to three units are still unsharded when backward begins, and need no second all-gather.
    const double spared = stage == 3 ? 3.0 / kWireLayers : 0;
    // Packet headers, message lengths, and the fingerprints.
    constexpr double kOverhead = 1.03;
    for (const double bytes : {second, third}) {
      EXPECT_GE(bytes, (volume - spared) * parameters) << "stage " << stage << ": " << outcome.out;
      EXPECT_LE(bytes, volume * parameters * kOverhead) << "stage " << stage << ": " << outcome.out;
    }
  }
}

}  // namespace
}  // namespace lockstep::e2e
