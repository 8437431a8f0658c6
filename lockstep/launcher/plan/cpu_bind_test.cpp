// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/cpu_bind.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/cores.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

/// Two memory nodes of three cores each.
const std::vector<Core> kTwoNodes = {
    {0, 0, 0}, {2, 0, 2}, {4, 0, 4}, {1, 1, 1}, {3, 1, 3}, {5, 1, 5}};

TEST(BindPlan, SharesTheCoresEvenly) {
  EXPECT_THAT(
      bind_plan(config::CpuBind::kCores, kTwoNodes, 2),
      ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3, 5)));
  EXPECT_THAT(
      bind_plan(config::CpuBind::kCores, kTwoNodes, 4),
      ElementsAre(ElementsAre(0), ElementsAre(2, 4), ElementsAre(1), ElementsAre(3, 5)));
}

TEST(BindPlan, MoreRanksThanCoresShareThem) {
  const std::vector<Core> two = {{0, 0, 0}, {1, 0, 1}};
  EXPECT_THAT(
      bind_plan(config::CpuBind::kCores, two, 4),
      ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(1), ElementsAre(1)));
}

TEST(BindPlan, GivesRanksFullNumaNodes) {
  EXPECT_THAT(
      bind_plan(config::CpuBind::kNuma, kTwoNodes, 4),
      ElementsAre(
          ElementsAre(0, 2, 4), ElementsAre(0, 2, 4), ElementsAre(1, 3, 5), ElementsAre(1, 3, 5)));
  EXPECT_THAT(
      bind_plan(config::CpuBind::kNuma, kTwoNodes, 1), ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5)));
}

TEST(BindPlan, BindsNoRankByDefault) {
  EXPECT_THAT(bind_plan(config::CpuBind::kNone, kTwoNodes, 2), IsEmpty());
}

TEST(AllowedCores, AreThoseOfThisProcessByNodeAndSibling) {
  const TestFolder system;
  const std::vector<Core> real = allowed_cores();
  ASSERT_EQ(static_cast<int>(real.size()), available_cores());
  // One node after the other holds all that there is, the last core first.
  for (size_t i = 0; i < real.size(); ++i) {
    const auto node = system / ("node/node" + std::to_string(i));
    std::filesystem::create_directories(node);
    std::ofstream(node / "cpulist") << real[real.size() - 1 - i].id << "\n";
  }
  const std::vector<Core> cores = allowed_cores(system.path());
  ASSERT_EQ(cores.size(), real.size());
  EXPECT_EQ(cores.front().id, real.back().id);
  EXPECT_EQ(cores.back().node, static_cast<int>(real.size()) - 1);
}

TEST(AllowedCores, CountAsOneNodeWhereTheKernelTellsNothing) {
  const TestFolder nothing;
  for (const Core& core : allowed_cores(nothing.path())) {
    EXPECT_EQ(core.node, 0);
    EXPECT_EQ(core.sibling, core.id);
  }
}

TEST(CoreList, IsTheKernels) {
  EXPECT_THAT(parse_core_list("0-2,5,7-8"), ElementsAre(0, 1, 2, 5, 7, 8));
  EXPECT_EQ(core_list({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(core_list({}), "");
  for (const char* text : {"", "x", "3-1", "-1", "0-99999999999"}) {
    EXPECT_THAT(parse_core_list(text), IsEmpty()) << text;
  }
}

TEST(ParseCpuBind, NamesTheFlagAndTheLikeliestWord) {
  EXPECT_EQ(parse_cpu_bind("numa", "--cpu-bind"), config::CpuBind::kNuma);
  EXPECT_THAT(
      [] { parse_cpu_bind("core", "--cpu-bind"); },
      ThrowsMessage<ConfigError>(HasSubstr(
          "invalid value 'core' for --cpu-bind; expected one of none, cores, numa; did you mean "
          "'cores'?")));
}

}  // namespace
}  // namespace lockstep::launcher
