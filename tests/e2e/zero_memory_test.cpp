// SPDX-License-Identifier: Apache-2.0
//
// Stage 3 trains what data parallelism has no room for.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/launch_harness.h"

namespace lockstep::e2e {
namespace {

using ::testing::HasSubstr;

/// Four ranks, each with so much memory of its own (`ulimit -d`); 0: as much as there is.
Outcome train(const std::string& stage, int limit_mib) {
  const std::string limit =
      limit_mib == 0 ? "" : "ulimit -d " + std::to_string(limit_mib * 1024) + "; ";
  return run_lockstep(
      {"launch", "-n", "4", "--quiet", "sh", "-c", limit + "exec " ZERO_FIXTURE " " + stage},
      {"OMP_NUM_THREADS=1"});
}

TEST(ZeroMemory, a_model_is_trained_under_a_limit_that_data_parallel_does_not_fit_in) {
  constexpr int kLimitMib = 600;  // Data parallel takes 800, stage 3 about 430.
  const Outcome divided = train("3", kLimitMib);
  EXPECT_EQ(divided.code, 0) << divided.err;
  EXPECT_THAT(divided.out, HasSubstr("loss "));
  const Outcome whole = train("0", kLimitMib);
  EXPECT_NE(whole.code, 0);
  EXPECT_THAT(whole.err, HasSubstr("memory"));
  const Outcome unlimited = train("0", 0);
  EXPECT_EQ(unlimited.out, divided.out) << "and to the digits printed the same";
}

}  // namespace
}  // namespace lockstep::e2e
