// SPDX-License-Identifier: Apache-2.0
//
// `lockstep report` of real jobs of two processes.
#include <array>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::array<const char*, 7> kParts = {
    "data", "forward", "backward", "optimizer", "communication", "checkpoint", "other"};

std::vector<json> records_in(const fs::path& path) {
  std::vector<json> records;
  std::istringstream text(contents(path));
  for (std::string line; std::getline(text, line);) {
    records.push_back(json::parse(line));
  }
  return records;
}

/// Returns the sum of `key` over the records of steps.
double total(const std::vector<json>& records, const std::string& key) {
  double sum = 0;
  for (const json& record : records) {
    sum += record.contains("step") ? record.value(key, 0.0) : 0.0;
  }
  return sum;
}

/// Returns the data that a page contains.
json data_of(const fs::path& page) {
  const std::string text = contents(page);
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = text.find(begin) + begin.size();
  return json::parse(text.substr(at, text.find("</script>", at) - at));
}

class ReportOfAJob : public ::testing::Test {
 protected:
  Outcome train(const std::vector<std::string>& options, const std::string& end = "") const {
    std::vector<std::string> program = options;
    program.insert(program.end(), {REPORT_FIXTURE, run_.string(), "24"});
    if (!end.empty()) {
      program.push_back(end);
    }
    return run_lockstep(launch("2", program), variables());
  }
  Outcome report(std::vector<std::string> words = {}) const {
    words.insert(words.begin(), {"report", run_.string()});
    return run_lockstep(words, variables());
  }
  std::vector<std::string> variables() const {
    return {"OMP_NUM_THREADS=1", "XDG_STATE_HOME=" + folder_.path().string()};
  }

  TestFolder folder_;
  fs::path run_ = folder_ / "run";
};

TEST_F(ReportOfAJob, HasTheNumbersOfItsRecords) {
  const Outcome trained = train({});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome made = report();
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("finished, 2 ranks, 24 updates"));
  const json run = data_of(run_ / "report.html").at("runs").at(0);
  EXPECT_EQ(run.at("updates"), 24);
  EXPECT_EQ(run.at("notes"), json::array());
  for (int rank = 0; rank < 2; ++rank) {
    const auto records = records_in(run_ / "logs" / ("steps_" + std::to_string(rank) + ".jsonl"));
    const json& split = run.at("split").at(static_cast<size_t>(rank));
    EXPECT_EQ(split.at("steps"), 24);
    EXPECT_EQ(total(records, "steps"), 24);
    EXPECT_EQ(total(records, "samples"), 24 * 4);
    double sum = 0;
    for (const char* part : kParts) {
      const double seconds = split.at("parts").at(part).get<double>();
      EXPECT_NEAR(seconds, total(records, part), 1e-9) << part;
      sum += seconds;
    }
    EXPECT_NEAR(sum, total(records, "seconds"), 1e-6);
    EXPECT_GT(split.at("parts").at("communication").get<double>(), 0);
  }
  EXPECT_EQ(run.at("curves").at(0).at("name"), "train/loss");
  EXPECT_EQ(run.at("curves").at(0).at("value").size(), 24U);
  EXPECT_GT(run.at("between").at("checkpoint").get<double>(), 0);
}

TEST_F(ReportOfAJob, ShowsSettingsAsTextOnly) {
  ASSERT_EQ(train({}).code, 0);
  ASSERT_EQ(report().code, 0);
  EXPECT_THAT(contents(run_ / "report.html"), Not(HasSubstr("<b>bold")));
  EXPECT_EQ(
      data_of(run_ / "report.html").at("runs").at(0).at("config").at(1),
      json::array({"note", "</script><b>bold</b>"}));
}

TEST_F(ReportOfAJob, ThatFailedHasTheEndOfTheFlightRecorder) {
  EXPECT_EQ(train({}, "kill").code, 128 + 9);
  const Outcome made = report();
  ASSERT_EQ(made.code, 0) << made.err;
  const json run = data_of(run_ / "report.html").at("runs").at(0);
  EXPECT_THAT(run.at("flight").at("why").get<std::string>(), HasSubstr("rank 1"));
  const json& operations = run.at("flight").at("ranks").at(0).at("operations");
  EXPECT_THAT(operations.back().at("what").get<std::string>(), HasSubstr("all_reduce"));
  EXPECT_NE(run.at("status"), "finished");
}

TEST_F(ReportOfAJob, KeepsTheRecordsOfAKilledProcess) {
  EXPECT_EQ(train({}, "kill").code, 128 + 9);
  const auto records = records_in(run_ / "logs" / "steps_1.jsonl");
  // The process runs 12 steps of at least 20 ms each. A kill can lose the steps of its last 0.1 s.
  EXPECT_GE(total(records, "steps"), 5);
}

TEST_F(ReportOfAJob, FindsTheDumpInALogFolderOfTheRun) {
  EXPECT_EQ(train({"--log-dir", (run_ / "launch").string()}, "kill").code, 128 + 9);
  ASSERT_EQ(report().code, 0);
  const json run = data_of(run_ / "report.html").at("runs").at(0);
  EXPECT_THAT(run.at("flight").at("path").get<std::string>(), HasSubstr("launch"));
}

TEST_F(ReportOfAJob, ComparesTwoRuns) {
  ASSERT_EQ(train({}).code, 0);
  const Outcome made =
      report({"--compare", run_.string(), "--output", (folder_ / "both.html").string()});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(data_of(folder_ / "both.html").at("runs").size(), 2U);
}

TEST_F(ReportOfAJob, ThatDoesNotExistIsAUsageError) {
  const Outcome refused = report();
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("does not exist; expected the folder of a run"));
  const Outcome as_json = report({"--json"});
  EXPECT_EQ(as_json.code, 2);
  EXPECT_EQ(json::parse(as_json.out).at("schema"), "lockstep.report/1");
}

}  // namespace
}  // namespace lockstep::e2e
