// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/cores.h"

#include <fstream>
#include <sched.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/cores.h"
#include "lockstep/base/test_folder.h"

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

TEST(ParseRanks, AcceptsANumberOrTheMachinesCount) {
  constexpr Machine kCpuOnly = {.cores = 6, .gpus = 0};
  constexpr Machine kWithGpus = {.cores = 6, .gpus = 4};
  EXPECT_EQ(parse_ranks("3", kCpuOnly, "-n"), 3);
  EXPECT_EQ(parse_ranks("cpu", kWithGpus, "-n"), 6);
  EXPECT_EQ(parse_ranks("gpu", kWithGpus, "-n"), 4);
  EXPECT_EQ(parse_ranks("auto", kCpuOnly, "-n"), 6);
  EXPECT_EQ(parse_ranks("auto", kWithGpus, "-n"), 4);
  EXPECT_THAT(
      [&] { parse_ranks("gpu", kCpuOnly, "-n"); },
      ThrowsMessage<ConfigError>(HasSubstr("/dev/nvidia0 does not exist")));
}

TEST(ParseRanks, RefusesNonsenseNamingItAndItsFlag) {
  for (const char* text : {"abc", "0", "-1", "", "2x", "1.5", " 2", "99999999999999999999"}) {
    EXPECT_THAT(
        [&] { parse_ranks(text, {.cores = 2, .gpus = 0}, "--num-processes"); },
        ThrowsMessage<ConfigError>(
            HasSubstr("invalid value '" + std::string(text) + "' for --num-processes")));
  }
}

TEST(RankLimit, RefusesFarMoreRanksThanCoresUnlessForced) {
  EXPECT_NO_THROW(check_rank_limit(128, 2, false));
  EXPECT_THAT(
      [] { check_rank_limit(129, 2, false); }, ThrowsMessage<ConfigError>(HasSubstr("--force")));
  EXPECT_NO_THROW(check_rank_limit(129, 2, true));
}

TEST(VisibleGpus, AreThoseWithADeviceFileThatCudaMaySee) {
  const TestFolder devices;
  EXPECT_EQ(visible_gpus(std::nullopt, devices.path()), 0);
  EXPECT_EQ(visible_gpus("0,1", devices.path()), 0) << "there is none to see";
  for (const char* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"}) {
    std::ofstream(devices / name) << "";
  }
  EXPECT_EQ(visible_gpus(std::nullopt, devices.path()), 3);
  EXPECT_EQ(visible_gpus("2,0", devices.path()), 2);
  EXPECT_EQ(visible_gpus("", devices.path()), 0);
  EXPECT_EQ(visible_gpus("0,-1,1", devices.path()), 1);
}

TEST(PlanThreads, SharesTheCoresEvenlyAndLeavesEachRankOne) {
  EXPECT_EQ(plan_threads(0, std::nullopt, 8, 3).omp_num_threads, "2");
  EXPECT_EQ(plan_threads(0, std::nullopt, 2, 5).omp_num_threads, "1");
  EXPECT_EQ(plan_threads(0, std::nullopt, 2, 2).summary, "2 ranks with 1 thread each on 2 cores");
  EXPECT_EQ(plan_threads(0, std::nullopt, 1, 1).summary, "1 rank with 1 thread on 1 core");
}

TEST(PlanThreads, AskedForBeatsTheEnvironmentWhichBeatsTheShare) {
  EXPECT_EQ(plan_threads(4, "7", 8, 2).omp_num_threads, "4");
  const ThreadPlan plan = plan_threads(0, "7,2", 8, 2);
  EXPECT_EQ(plan.omp_num_threads, "7,2");
  EXPECT_EQ(plan.summary, "2 ranks on 8 cores, OMP_NUM_THREADS=7,2 from the environment");
}

}  // namespace
}  // namespace lockstep::launcher
