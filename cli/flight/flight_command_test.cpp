// SPDX-License-Identifier: Apache-2.0
#include "cli/flight/flight_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/watch/test_views.h"

namespace lockstep::cli {
namespace {

using testing::HasSubstr;
using testing::Not;
using watch::all_reduce;
using watch::kSecondNs;
using watch::Stage;

watch::FlightDump dump() {
  watch::FlightDump dump{
      .run_id = "4f2c",
      .why = "rank 1 has not come",
      .time = "2026-01-02T03:04:05Z",
      .now_ns = 40 * kSecondNs,
      .ranks = {}};
  dump.ranks.push_back(watch::view_of(
      0,
      {all_reduce(1, 5 * kSecondNs, Stage::kDone),
       all_reduce(2, 10 * kSecondNs, Stage::kRunning)}));
  dump.ranks.push_back(watch::view_of(1, {all_reduce(1, 6 * kSecondNs, Stage::kDone)}));
  dump.ranks[0].record.issued = 2;
  return dump;
}

TEST(ShowFlight, ShowsTheLastOperationOfEachRank) {
  const Report report = show_flight(dump(), "x.json", {});
  EXPECT_THAT(report.text, HasSubstr("rank 1 has not come"));
  EXPECT_THAT(
      report.text,
      HasSubstr("  rank 0  step 0, in all_reduce(sum) of float32[10] (operation 2) for 30.0 s\n"));
  EXPECT_THAT(report.text, HasSubstr("rank 0, the last 2 of 2 operations\n"));
  EXPECT_THAT(
      report.text, HasSubstr("running     30.000000   30.000  all_reduce(sum) of float32[10]\n"));
  ASSERT_EQ(report.json.at("ranks").size(), 2U);
  EXPECT_EQ(report.json.at("ranks")[0].at("operations")[1].at("stage"), "running");
  EXPECT_THAT(
      report.json.at("ranks")[1].at("doing").get<std::string>(), HasSubstr("in no operation"));
}

TEST(ShowFlight, ShowsOneRanksLastOperations) {
  const Report report = show_flight(dump(), "x.json", {.rank = 0, .last = 1});
  EXPECT_THAT(report.text, HasSubstr("rank 0, the last 1 of 2 operations\n"));
  EXPECT_THAT(report.text, HasSubstr("  rank 1  step 0"));
  EXPECT_THAT(report.text, Not(HasSubstr("rank 1, the last")));
  EXPECT_EQ(report.json.at("ranks").size(), 1U);
  EXPECT_EQ(report.json.at("ranks")[0].at("operations").size(), 1U);
}

TEST(ShowFlight, RefusesARankThatIsNotThere) {
  EXPECT_THAT(
      [] { show_flight(dump(), "x.json", {.rank = 2}); },
      testing::ThrowsMessage<ConfigError>(HasSubstr("has no rank 2; expected 0 to 1")));
}

}  // namespace
}  // namespace lockstep::cli
