// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/cores.h"

#include <sched.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Cores, CountsOnlyThoseThisProcessMayUse) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(available_cores(), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &before)) {
      CPU_SET(core, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(available_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(ParseRanks, TakesANumberOrAuto) {
  EXPECT_EQ(parse_ranks("3", 2, false), 3);
  EXPECT_EQ(parse_ranks("auto", 6, false), 6);
}

TEST(ParseRanks, RefusesNonsenseNamingIt) {
  for (const char* text : {"abc", "0", "-1", "", "2x", "1.5", " 2", "99999999999999999999"}) {
    EXPECT_THAT(
        [&] { parse_ranks(text, 2, true); },
        ThrowsMessage<ConfigError>(HasSubstr("got '" + std::string(text) + "'")));
  }
}

TEST(ParseRanks, RefusesFarMoreRanksThanCoresUnlessForced) {
  EXPECT_EQ(parse_ranks("128", 2, false), 128);
  EXPECT_THAT(
      [] { parse_ranks("129", 2, false); }, ThrowsMessage<ConfigError>(HasSubstr("--force")));
  EXPECT_EQ(parse_ranks("129", 2, true), 129);
}

TEST(PlanThreads, SharesTheCoresEvenlyAndLeavesEachRankOne) {
  EXPECT_EQ(plan_threads(0, std::nullopt, 8, 3).omp_num_threads, "2");
  EXPECT_EQ(plan_threads(0, std::nullopt, 2, 5).omp_num_threads, "1");
  EXPECT_EQ(plan_threads(0, std::nullopt, 2, 2).summary, "2 ranks x 1 thread on 2 cores");
  EXPECT_EQ(plan_threads(0, std::nullopt, 1, 1).summary, "1 rank x 1 thread on 1 core");
}

TEST(PlanThreads, AskedForBeatsTheEnvironmentWhichBeatsTheShare) {
  EXPECT_EQ(plan_threads(4, "7", 8, 2).omp_num_threads, "4");
  const ThreadPlan plan = plan_threads(0, "7,2", 8, 2);
  EXPECT_EQ(plan.omp_num_threads, "7,2");
  EXPECT_EQ(plan.summary, "2 ranks on 8 cores, OMP_NUM_THREADS=7,2 from the environment");
}

}  // namespace
}  // namespace lockstep::launcher
