// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/values/table.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/tracking/lines/csv_tracker.h"
#include "lockstep/tracking/lines/jsonl_tracker.h"
#include "lockstep/tracking/test_folder.h"

namespace lockstep::tracking {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const Table kAnswers = {
    {"text", "score", "right"}, {{"a|b\nc", 0.5, true}, {"d", std::nan(""), nullptr}}};

TEST(Table, IsMarkdownWithALineForEachRow) {
  EXPECT_EQ(
      table_markdown(kAnswers),
      "| text | score | right |\n|---|---|---|\n| a\\|b c | 0.5 | true |\n| d | NaN | null |");
}

TEST(Table, IsALineOfJsonl) {
  const TestFolder folder;
  JsonlTracker tracker(folder / "metrics.jsonl");
  tracker.log_tables({{"answers", kAnswers}}, 3);
  const auto line = nlohmann::json::parse(lines_of(tracker.path()).at(0));
  EXPECT_EQ(line.at("step"), 3);
  EXPECT_EQ(
      line.at("tables").dump(),
      R"({"answers":{"columns":["text","score","right"],"data":[["a|b\nc",0.5,true],["d","NaN",null]]}})");
}

TEST(Table, ThatIsNoTableIsRefusedByName) {
  const auto error_of = [](const Table& table) {
    std::string message = "no error";
    try {
      check_table("answers", table);
    } catch (const ConfigError& error) {
      message = error.what();
    }
    return message;
  };
  EXPECT_EQ(error_of(kAnswers), "no error");
  EXPECT_THAT(error_of({}), HasSubstr("table 'answers' has no columns"));
  EXPECT_THAT(
      error_of({{"a", "b"}, {{1, 2}, {1}}}), HasSubstr("has a row 1 of 1 cells; expected 2"));
  EXPECT_THAT(
      error_of({{"a"}, {{nlohmann::json::object()}}}),
      HasSubstr("has a JSON object in row 0, column 'a'"));
  EXPECT_THAT(error_of({{"a"}, {{"\xff"}}}), HasSubstr("expected text in UTF-8"));
}

TEST(Table, IsRefusedByATrackerOfNumbers) {
  const TestFolder folder;
  CsvTracker tracker(folder.path());
  EXPECT_THAT(
      [&] {
        tracker.log_tables({{"answers", kAnswers}}, 0);
      },
      ThrowsMessage<ConfigError>(HasSubstr("tracker 'csv' stores no tables")));
}

}  // namespace
}  // namespace lockstep::tracking
