// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report_command.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/report/test_runs.h"
#include "lockstep/base/error.h"
#include "lockstep/watch/flight_dump.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

class ReportOfARun : public ::testing::Test {
 protected:
  ReportOfARun() { write_step_file(run_ / "logs", 0, step_header(0, 1) + step_line(4, 4, 2)); }
  Report report(const ReportOptions& options = {}) const {
    return report_run(
        run_, options, Environment::of({{"XDG_STATE_HOME", (folder_ / "state").string()}}));
  }
  void write_dump(const fs::path& path, const std::string& run_id, const std::string& why) const {
    fs::create_directories(path.parent_path());
    watch::RankView view;
    view.record.pid = 1;
    view.record.operations.push_back({.number = 7, .name = watch::short_text<20>("all_reduce")});
    watch::write_dump(
        {.run_id = run_id, .why = why, .time = "2026-01-01 00:00:00", .now_ns = 9, .ranks = {view}},
        path);
  }

  TestFolder folder_;
  fs::path run_ = folder_ / "run";
};

TEST_F(ReportOfARun, IsWrittenIntoTheRunsFolder) {
  const Report made = report();
  EXPECT_EQ(made.json.at("output"), (run_ / "report.html").string());
  EXPECT_THAT(contents(run_ / "report.html"), HasSubstr("</html>"));
  EXPECT_THAT(made.text, HasSubstr("1 rank, 4 updates, 800 samples/s"));
  EXPECT_THAT(made.text, HasSubstr("data 0.0 %, compute 80.0 %, communication 20.0 %"));
}

TEST_F(ReportOfARun, SaysWhichFilesAreAbsent) {
  EXPECT_THAT(report().text, HasSubstr("has no files of the trackers jsonl, tensorboard and csv"));
}

TEST_F(ReportOfARun, ComparesWithAnother) {
  const fs::path other = folder_ / "other";
  write_step_file(other, 0, step_header(0, 1) + step_line(8, 8, 1));
  const Report made = report({.output = folder_ / "both.html", .compare = other});
  EXPECT_EQ(made.json.at("runs").size(), 2U);
  EXPECT_EQ(made.json.at("runs")[1].at("updates"), 8);
  EXPECT_TRUE(fs::exists(folder_ / "both.html"));
  EXPECT_FALSE(fs::exists(run_ / "report.html"));
}

TEST_F(ReportOfARun, ShowsTheNewestFlightDumpOfItsRunId) {
  write_dump(folder_ / "state" / "lockstep" / "flights" / "r4f-0.json", "r4f", "rank 1 failed");
  write_dump(folder_ / "state" / "lockstep" / "flights" / "other-0.json", "other", "other job");
  const Report made = report();
  EXPECT_EQ(made.json.at("runs")[0].at("flight").at("why"), "rank 1 failed");
  EXPECT_THAT(made.text, Not(HasSubstr("flight")));
}

TEST_F(ReportOfARun, FindsTheFlightDumpOfALogFolderWithinIt) {
  write_dump(run_ / "launch" / "r4f" / "attempt_0" / "flight.json", "r4f", "rank 0 stalled");
  EXPECT_EQ(report().json.at("runs")[0].at("flight").at("why"), "rank 0 stalled");
}

TEST_F(ReportOfARun, SaysThatNoFlightDumpWasFound) {
  EXPECT_THAT(report().text, HasSubstr("no flight dump of this run was found"));
}

TEST_F(ReportOfARun, RefusesADumpThatIsNone) {
  const fs::path path = write_text(folder_ / "flight.json", "{}");
  EXPECT_THAT(
      [&] { report({.flight = path}); },
      ThrowsMessage<ConfigError>(HasSubstr("is not a flight dump")));
}

TEST_F(ReportOfARun, NamesTheFileThatCannotBeWritten) {
  EXPECT_THAT(
      [&] { report({.output = folder_ / "none" / "page.html"}); },
      ThrowsMessage<Error>(HasSubstr("none/page.html")));
}

}  // namespace
}  // namespace lockstep::cli
