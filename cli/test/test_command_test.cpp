// SPDX-License-Identifier: Apache-2.0
#include "cli/test/test_command.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"

namespace lockstep::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

class SelfTestProgram : public testing::Test {
 protected:
  void put(const fs::path& name) const {
    fs::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name) << "#!/bin/sh\n";
    fs::permissions(folder_.path() / name, fs::perms::owner_all);
  }
  fs::path self() const { return folder_.path() / "bin" / "lockstep"; }
  TestFolder folder_;
};

TEST_F(SelfTestProgram, IsFoundBesideTheCommandThenInLibexec) {
  EXPECT_THAT(
      [&] { find_selftest(self()); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("bin/lockstep_selftest or "),
          HasSubstr("/libexec/lockstep/lockstep_selftest"))));
  put("libexec/lockstep/lockstep_selftest");
  EXPECT_EQ(find_selftest(self()), folder_ / "libexec" / "lockstep" / "lockstep_selftest");
  put("bin/lockstep_selftest");
  EXPECT_EQ(find_selftest(self()), folder_ / "bin" / "lockstep_selftest");
}

class SelfTestReport : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  TestFolder folder_;
};

TEST_F(SelfTestReport, AllThatHoldsIsZero) {
  write("checks.jsonl", "{\"name\":\"a\",\"ok\":true}\n{\"name\":\"b\",\"ok\":true}\n");
  const Report report = selftest_report(folder_.path(), 2, 0);
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_EQ(report.text, "lockstep test of 2 ranks: 2 checks passed\n");
  EXPECT_EQ(report.json["checks"].size(), 2U);
  EXPECT_EQ(report.json["ok"], true);
}

TEST_F(SelfTestReport, FailedChecksAreCounted) {
  write("checks.jsonl", "{\"name\":\"a\",\"ok\":true}\n{\"name\":\"b\",\"ok\":false}\n");
  const Report report = selftest_report(folder_.path(), 2, 0);
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_THAT(report.text, HasSubstr("1 of 2 checks failed"));
}

TEST_F(SelfTestReport, ADeadJobIsReportedWithTheRanksMessages) {
  write("checks.jsonl", "{\"name\":\"a\",\"ok\":true}\n{\"name\":\"b\",\"o");
  write("lost_1.jsonl", "{\"rank\":1,\"check\":\"b\",\"message\":\"[all_reduce] reset\"}\n");
  const Report report = selftest_report(folder_.path(), 2, 139);
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_THAT(
      report.text,
      AllOf(HasSubstr("FAIL  b: rank 1: [all_reduce] reset"), HasSubstr("(exit code 139)")));
  EXPECT_EQ(report.json["lost"][0]["rank"], 1);
}

TEST_F(SelfTestReport, AJobWithoutAnyCheckDoesNotHold) {
  EXPECT_EQ(selftest_report(folder_.path(), 2, 0).exit_code, 1);
}

TEST_F(SelfTestReport, AMissingLibtorchIsReportedWithTheRemedy) {
  EXPECT_THAT(
      selftest_report(folder_.path(), 2, 127).text,
      AllOf(HasSubstr("libtorch was not found; expected torch "), HasSubstr("LD_LIBRARY_PATH")));
}

TEST_F(SelfTestReport, ASignalFromTheUserIsItsCode) {
  EXPECT_EQ(selftest_report(folder_.path(), 2, 130).exit_code, 130);
}

}  // namespace
}  // namespace lockstep::cli
