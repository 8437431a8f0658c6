// SPDX-License-Identifier: Apache-2.0
#include "cli/report/page_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/report/test_runs.h"

namespace lockstep::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

TEST(PageData, HasTheTotalsOfEachRankAndTheMeanOfAllRanks) {
  const TestFolder folder;
  write_step_file(folder.path(), 0, step_header(0, 2) + step_line(2, 2, 4) + step_line(4, 2, 2));
  write_step_file(
      folder.path(), 1, step_header(1, 2) + step_line(2, 2, 6, 0) + step_line(4, 2, 4, 0));
  const OrderedJson data = page_data(read_run_files(folder.path()));
  EXPECT_EQ(data.at("processes"), 2);
  EXPECT_EQ(data.at("updates"), 4);
  EXPECT_NEAR(data.at("samples_per_second").get<double>(), 2 * 8 / 0.01, 1e-6);
  EXPECT_NEAR(data.at("split")[0].at("parts").at("communication").get<double>(), 0.008, 1e-12);
  EXPECT_EQ(data.at("split")[1].at("parts").at("communication"), 0);
  EXPECT_EQ(data.at("split")[1].at("host"), "h1");
  const OrderedJson& series = data.at("series");
  EXPECT_EQ(series.at("step"), OrderedJson({2, 4}));
  EXPECT_EQ(series.at("loss"), OrderedJson({5.0, 3.0}));
  EXPECT_EQ(series.at("lr"), OrderedJson({0.5, 0.5}));
  EXPECT_NEAR(series.at("parts").at("communication")[0].get<double>(), 0.001, 1e-12);
  EXPECT_EQ(data.at("memory")[1].at("process"), OrderedJson({1048576, 1048576}));
}

TEST(PageData, HasAtMostFourHundredPointsWhoseMeansAreExact) {
  const TestFolder folder;
  std::string lines = step_header(0, 1);
  for (int step = 1; step <= 4000; ++step) {
    lines += step_line(step, 1, step);
  }
  write_step_file(folder.path(), 0, lines);
  const OrderedJson data = page_data(read_run_files(folder.path()));
  const OrderedJson& series = data.at("series");
  ASSERT_EQ(series.at("step").size(), kMostPoints);
  EXPECT_EQ(series.at("step").back(), 4000);
  EXPECT_EQ(series.at("loss")[0], 5.5);
  EXPECT_NEAR(data.at("split")[0].at("seconds").get<double>(), 40, 1e-9);
}

TEST(PageData, HasNullForALossThatIsNoNumber) {
  const TestFolder folder;
  std::string line = step_line(1, 1, 4);
  line.replace(line.find("\"loss\":4"), 8, "\"loss\":\"NaN\"");
  write_step_file(folder.path(), 0, step_header(0, 1) + line);
  EXPECT_TRUE(page_data(read_run_files(folder.path())).at("series").at("loss")[0].is_null());
}

TEST(PageData, OfARunWithoutStepRecordsHasItsCurves) {
  const TestFolder folder;
  write_text(folder / "metrics.jsonl", "{\"step\":3,\"time\":1,\"loss\":0.5}\n");
  const OrderedJson data = page_data(read_run_files(folder.path()));
  EXPECT_TRUE(data.at("updates").is_null());
  EXPECT_TRUE(data.at("series").at("step").empty());
  EXPECT_EQ(data.at("curves")[0].at("value"), OrderedJson({0.5}));
}

TEST(PageData, NamesNestedSettingsByTheirPath) {
  const TestFolder folder;
  write_text(
      folder / "metrics.jsonl",
      R"({"config":{"optimizer":{"lr":0.1,"name":"AdamW"},"tags":[1,2]},"time":1})");
  const OrderedJson rows = page_data(read_run_files(folder.path())).at("config");
  EXPECT_EQ(
      rows,
      OrderedJson::array(
          {OrderedJson::array({"optimizer.lr", "0.1"}),
           OrderedJson::array({"optimizer.name", "AdamW"}),
           OrderedJson::array({"tags", "[1,2]"})}));
}

}  // namespace
}  // namespace lockstep::cli
