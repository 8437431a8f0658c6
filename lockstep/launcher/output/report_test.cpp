// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/report.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lockstep::launcher {
namespace {

FailureReport killed_rank() {
  return {
      .ranks = 2,
      .cause =
          {.rank = 1,
           .pid = 42,
           .exit_status = {.by_signal = true, .value = SIGKILL},
           .seconds = 3.21},
      .also_failed = {},
      .stopped = 1,
      .exit_code = 137,
      .host = "node7",
      .command = {"./train", "--name", "a b"},
      .last_lines = {"step 7", "step 8"}};
}

TEST(TextReport, NamesTheRankCauseTimeAndLastLines) {
  EXPECT_EQ(
      text_report(killed_rank()),
      "lockstep: rank 1 of 2 was killed by SIGKILL (signal 9) after 3.2 s; the other rank was "
      "stopped\n"
      "  host:       node7, pid 42\n"
      "  command:    ./train --name 'a b'\n"
      "  exit code:  137\n"
      "  last lines of its stderr:\n"
      "    step 7\n"
      "    step 8\n");
}

TEST(TextReport, NamesOtherFailedAndStoppedRanks) {
  FailureReport report = killed_rank();
  report.ranks = 4;
  report.last_lines.clear();
  report.also_failed = {{.rank = 0, .exit_status = {.by_signal = false, .value = 1}}};
  report.stopped = 2;
  EXPECT_EQ(
      text_report(report),
      "lockstep: rank 1 of 4 was killed by SIGKILL (signal 9) after 3.2 s; 2 other ranks were "
      "stopped\n"
      "  host:       node7, pid 42\n"
      "  command:    ./train --name 'a b'\n"
      "  exit code:  137\n"
      "  also:       rank 0 ended with exit code 1\n");
  report.stopped = 3;
  EXPECT_NE(text_report(report).find("; the other ranks were stopped\n"), std::string::npos);
  report.stopped = 0;
  EXPECT_NE(text_report(report).find("after 3.2 s\n"), std::string::npos);
}

TEST(JsonReport, IsOneLineWithTheSameFacts) {
  FailureReport report = killed_rank();
  report.also_failed = {{.rank = 0, .pid = 41, .exit_status = {.by_signal = false, .value = 1}}};
  report.last_lines = {"broken \xff utf-8"};
  const std::string line = json_report(report);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto object = nlohmann::json::parse(line);
  EXPECT_EQ(object["version"], 1);
  EXPECT_EQ(object["event"], "job_failed");
  EXPECT_EQ(object["exit_code"], 137);
  EXPECT_EQ(object["cause"]["rank"], 1);
  EXPECT_EQ(object["cause"]["signal_name"], "SIGKILL");
  EXPECT_FALSE(object["cause"].contains("code"));
  EXPECT_EQ(object["also_failed"][0]["code"], 1);
  EXPECT_EQ(object["command"][2], "a b");
}

TEST(TextReport, NamesTheLogAndSumsUpTheAttempts) {
  FailureReport report = killed_rank();
  report.last_lines.clear();
  report.log_file = "logs/x/attempt_3/1/stderr.log";
  report.attempts = 4;
  report.failed_attempts = {
      {.number = 2,
       .cause = {.rank = 0, .exit_status = {.by_signal = false, .value = 3}, .seconds = 1}},
      {.number = 3, .cause = report.cause}};
  EXPECT_THAT(
      text_report(report),
      testing::EndsWith("  exit code:  137\n"
                        "  log:        logs/x/attempt_3/1/stderr.log\n"
                        "  attempts:   4, all failed\n"
                        "    ... 2 before these\n"
                        "    attempt 2: rank 0 ended with exit code 3 after 1.0 s\n"
                        "    attempt 3: rank 1 was killed by SIGKILL (signal 9) after 3.2 s\n"));
  const auto object = nlohmann::json::parse(json_report(report));
  EXPECT_EQ(object["cause"]["log_file"], report.log_file);
  EXPECT_EQ(object["attempts"], 4);
  EXPECT_EQ(object["failed_attempts"][0]["attempt"], 2);
  EXPECT_EQ(object["failed_attempts"][1]["signal_name"], "SIGKILL");
}

}  // namespace
}  // namespace lockstep::launcher
