// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/lines/jsonl_tracker.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/tracking/test_folder.h"
#include "lockstep/tracking/values/histogram.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::ThrowsMessage;

class Jsonl : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "run" / "metrics.jsonl"; }
  std::vector<std::string> lines() const { return lines_of(path()); }
  TestFolder folder_;
};

TEST_F(Jsonl, WritesOneFlatObjectALine) {
  JsonlTracker tracker(path());
  tracker.store_config({{"lr", 0.1}, {"layers", {32, 64}}});
  tracker.log({{"loss", 0.5}, {"accuracy", 1}}, 10);
  tracker.finish(RunStatus::kFailed);
  ASSERT_EQ(lines().size(), 3U);
  EXPECT_THAT(
      lines()[0], MatchesRegex(R"(\{"config":\{"layers":\[32,64\],"lr":0\.1\},"time":[0-9.]+\})"));
  EXPECT_THAT(
      lines()[1], MatchesRegex(R"(\{"step":10,"time":[0-9.]+,"accuracy":1\.0,"loss":0\.5\})"));
  EXPECT_THAT(lines()[2], MatchesRegex(R"(\{"status":"failed","time":[0-9.]+\})"));
  const double time = json::parse(lines()[1]).at("time").get<double>();
  EXPECT_LE(std::abs(time - wall_time_s()), 60);
}

TEST_F(Jsonl, EveryLineIsInTheFileWhenTheCallReturns) {
  JsonlTracker tracker(path());
  for (int step = 0; step < 5; ++step) {
    tracker.log({{"loss", 0.5}}, step);
    ASSERT_EQ(lines().size(), static_cast<size_t>(step + 1));
    ASSERT_EQ(contents(path()).back(), '\n');
  }
  tracker.flush();
}

TEST_F(Jsonl, DoublesReadBackExactly) {
  std::vector<double> doubles = {
      0.1, 1.0 / 3, -0.0, 1e300, 5e-324, 1e16, 123456789.123456789, 9007199254740993.0};
  uint64_t state = 88172645463325252ULL;
  while (doubles.size() < 2000) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    const auto value = std::bit_cast<double>(state);
    if (std::isfinite(value)) {
      doubles.push_back(value);
    }
  }
  JsonlTracker tracker(path());
  Values values;
  for (size_t i = 0; i < doubles.size(); ++i) {
    values["v" + std::to_string(i)] = doubles[i];
  }
  tracker.log(values, 0);
  const json line = json::parse(lines().at(0));
  for (size_t i = 0; i < doubles.size(); ++i) {
    const json& read = line.at("v" + std::to_string(i));
    ASSERT_TRUE(read.is_number_float()) << read;
    ASSERT_EQ(std::bit_cast<uint64_t>(read.get<double>()), std::bit_cast<uint64_t>(doubles[i]));
  }
}

TEST_F(Jsonl, NamesNumbersThatAreNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  JsonlTracker tracker(path());
  tracker.log({{"nan", std::nan("")}, {"up", infinity}, {"down", -infinity}, {"ok", 1.5}}, 1);
  tracker.log({{"ok", 2.5}}, 2);
  const json line = json::parse(lines().at(0));
  EXPECT_EQ(line.at("nan"), "NaN");
  EXPECT_EQ(line.at("up"), "Infinity");
  EXPECT_EQ(line.at("down"), "-Infinity");
  EXPECT_EQ(line.at("ok"), 1.5);
  EXPECT_EQ(json::parse(lines().at(1)).at("ok"), 2.5);
}

TEST_F(Jsonl, StoresTextAndHistograms) {
  JsonlTracker tracker(path());
  tracker.log_text({{"note", "a \"b\""}}, 1);
  tracker.log_histograms({{"w", histogram_of(std::vector<double>{0, 1, 2, std::nan("")}, 2)}}, 2);
  const json text = json::parse(lines().at(0));
  EXPECT_EQ(text.at("step"), 1);
  EXPECT_EQ(text.at("text"), (json{{"note", "a \"b\""}}));
  const json histogram = json::parse(lines().at(1)).at("histograms").at("w");
  EXPECT_EQ(
      histogram,
      (json{
          {"count", 3},
          {"min", 0.0},
          {"max", 2.0},
          {"sum", 3.0},
          {"sum_of_squares", 5.0},
          {"non_finite", 1},
          {"edges", {0.0, 1.0, 2.0}},
          {"counts", {1, 2}}}));
}

TEST_F(Jsonl, RefusesTheNamesEveryLineHas) {
  JsonlTracker tracker(path());
  for (const char* name : {"step", "time"}) {
    EXPECT_THAT(
        [&] {
          tracker.log({{"loss", 1}, {name, 2}}, 1);
        },
        ThrowsMessage<ConfigError>(AllOf(HasSubstr(name), HasSubstr(path().string()))));
  }
  EXPECT_TRUE(lines().empty());
  tracker.log({{"config", 1}, {"status", 2}}, 1);
  EXPECT_EQ(lines().size(), 1U);
}

TEST_F(Jsonl, EscapesEveryCharacterOfAName) {
  JsonlTracker tracker(path());
  const std::string name = "a \"b\"\n\tα";
  tracker.log({{name, 1}}, 1);
  ASSERT_EQ(lines().size(), 1U);
  EXPECT_EQ(json::parse(lines()[0]).at(name), 1.0);
}

TEST_F(Jsonl, AResumedRunAppendsToTheSameFile) {
  {
    JsonlTracker tracker(path());
    tracker.log({{"loss", 2}}, 1);
  }
  JsonlTracker tracker(path());
  EXPECT_EQ(lines().size(), 1U);
  tracker.log({{"loss", 1}}, 2);
  ASSERT_EQ(lines().size(), 2U);
  EXPECT_EQ(json::parse(lines()[0]).at("step"), 1);
  EXPECT_EQ(json::parse(lines()[1]).at("step"), 2);
}

TEST_F(Jsonl, ATornLastLineDoesNotSpoilTheNext) {
  for (const std::string& torn : {std::string(R"({"step":1,"ti)"), std::string(3, '\0')}) {
    std::filesystem::create_directories(path().parent_path());
    std::ofstream(path(), std::ios::binary) << "{\"step\":0}\n" << torn;
    JsonlTracker tracker(path());
    EXPECT_EQ(lines().size(), 2U);
    tracker.log({{"loss", 1}}, 2);
    tracker.log({{"loss", 1}}, 3);
    ASSERT_EQ(lines().size(), 4U);
    EXPECT_EQ(lines()[1], torn);
    EXPECT_EQ(json::parse(lines()[2]).at("step"), 2);
    EXPECT_EQ(json::parse(lines()[3]).at("step"), 3);
  }
}

TEST_F(Jsonl, AFullDiskIsAnErrorOfTheCallThatDidNotFit) {
  JsonlTracker tracker("/dev/full");
  for (int step = 0; step < 2; ++step) {
    EXPECT_THAT(
        [&] {
          tracker.log({{"loss", 1}}, step);
        },
        ThrowsMessage<Error>(
            AllOf(HasSubstr("[/dev/full]"), HasSubstr("No space left on device"))));
  }
  EXPECT_THROW(tracker.finish(), Error);
  EXPECT_NO_THROW(tracker.finish());
}

int fill_jsonl(const std::filesystem::path& folder) {
  JsonlTracker tracker(folder / "m.jsonl");
  return log_until_full(tracker, {"File too large"});
}

TEST_F(Jsonl, AFullDiskLeavesCompleteLines) {
  EXPECT_EQ(run_with_file_limit(1000, &fill_jsonl, folder_.path()), 0);
  const std::string bytes = contents(folder_.path() / "m.jsonl");
  ASSERT_FALSE(bytes.empty());
  EXPECT_EQ(bytes.back(), '\n');
  for (const std::string& line : lines_of(folder_.path() / "m.jsonl")) {
    EXPECT_EQ(json::parse(line).at("loss"), 0.5);
  }
}

}  // namespace
}  // namespace lockstep::tracking
