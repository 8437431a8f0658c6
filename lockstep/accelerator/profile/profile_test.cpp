// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/profile/profile.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

nlohmann::json read_trace(const std::filesystem::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

bool mentions(const nlohmann::json& trace, const std::string& name) {
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.value("name", "") == name) {
      return true;
    }
  }
  return false;
}

TEST(Profile, WritesAChromeTraceOfTheOperations) {
  const TestFolder folder;
  Accelerator accelerator({.project_dir = folder.path()}, WorldSpec{}, Group());
  auto profile = accelerator.profile({.record_shapes = true});
  EXPECT_THROW(accelerator.profile(), ConfigError) << "a second profiler";
  at::mm(at::ones({4, 4}), at::ones({4, 4}));
  const auto traces = profile->finish();
  ASSERT_THAT(traces, ElementsAre(folder.path() / "profile" / "profile_0.json"));
  const nlohmann::json trace = read_trace(traces[0]);
  EXPECT_TRUE(mentions(trace, "aten::mm"));
  EXPECT_THAT(trace.dump(), HasSubstr("Input Dims"));
  EXPECT_EQ(profile->finish(), traces);
}

TEST(Profile, RecordsOnlyTheActiveStepsOfEachCycle) {
  const TestFolder folder;
  std::vector<std::filesystem::path> ready;
  Profile profile(
      {.output_trace_dir = folder.path(),
       .skip_first = 1,
       .wait = 1,
       .warmup = 1,
       .active = 1,
       .repeat = 2,
       .on_trace_ready = [&](const std::filesystem::path& trace) { ready.push_back(trace); }},
      3);
  for (int step = 0; step < 10; ++step) {
    // Steps 3 and 6 are active.
    step == 3 || step == 6 ? at::sin(at::ones({2})) : at::cos(at::ones({2}));
    profile.step();
  }
  EXPECT_EQ(profile.finish(), ready);
  ASSERT_THAT(
      ready, ElementsAre(folder.path() / "profile_3_0.json", folder.path() / "profile_3_1.json"));
  for (const auto& path : ready) {
    EXPECT_TRUE(mentions(read_trace(path), "aten::sin"));
    EXPECT_FALSE(mentions(read_trace(path), "aten::cos"));
  }
}

TEST(Profile, RefusesOptionsThatContradictEachOther) {
  const TestFolder folder;
  EXPECT_THROW(Profile({}, 0), ConfigError);
  EXPECT_THROW(Profile({.output_trace_dir = folder.path(), .wait = 1}, 0), ConfigError);
  EXPECT_THROW(Profile({.output_trace_dir = folder.path(), .active = -1}, 0), ConfigError);
  Profile profile({.output_trace_dir = folder.path()}, 0);
  EXPECT_THROW(profile.step(), ConfigError);
}

}  // namespace
}  // namespace lockstep
