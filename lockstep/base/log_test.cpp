// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/log.h"

#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class Log : public testing::Test {
 protected:
  Log() {
    set_log_options({});
    set_log_sink([this](const std::string& line) { lines_.push_back(line); });
  }
  ~Log() override {
    set_log_sink({});
    set_log_options({});
  }
  std::vector<std::string> lines_;
};

TEST_F(Log, WritesTheLevelInFrontUnlessItIsInfo) {
  set_log_options({.level = LogLevel::kDebug});
  log_debug("d");
  log_info("i");
  log_warning("w");
  log_error("e");
  EXPECT_THAT(lines_, ElementsAre("debug: d\n", "i\n", "warning: w\n", "error: e\n"));
}

TEST_F(Log, SkipsLinesBelowItsLevel) {
  log_debug("hidden");
  log_info("shown");
  set_log_options({.level = LogLevel::kError});
  log_warning("hidden");
  log_error("shown too");
  EXPECT_THAT(lines_, ElementsAre("shown\n", "error: shown too\n"));
}

TEST_F(Log, NamesTheRankInAWorldOfSeveral) {
  const ThreadRankScope scope({0, 2});
  log_info("step 1");
  EXPECT_THAT(lines_, ElementsAre("[rank 0] step 1\n"));
}

TEST_F(Log, OtherRanksLogOnlyEveryRankLines) {
  set_log_options({.level = LogLevel::kDebug});
  const ThreadRankScope scope({1, 2});
  log_info("hidden");
  log_warning("hidden");
  log_warning("mine", LogAudience::kEveryRank);
  log_debug("d");
  log_error("e");
  EXPECT_THAT(
      lines_,
      ElementsAre("[rank 1] warning: mine\n", "[rank 1] debug: d\n", "[rank 1] error: e\n"));
}

TEST_F(Log, JsonLinesHoldTimeLevelRankAndMessage) {
  set_log_options({.json = true});
  {
    const ThreadRankScope scope({1, 2});
    log_error("a \"quoted\"\nthing");
  }
  log_info("no rank");
  ASSERT_EQ(lines_.size(), 2U);
  EXPECT_EQ(lines_[0].find('\n'), lines_[0].size() - 1);
  const nlohmann::json first = nlohmann::json::parse(lines_[0]);
  EXPECT_EQ(first.at("level"), "error");
  EXPECT_EQ(first.at("rank"), 1);
  EXPECT_EQ(first.at("message"), "a \"quoted\"\nthing");
  EXPECT_GT(first.at("time").get<double>(), 1.6e9);
  const nlohmann::json second = nlohmann::json::parse(lines_[1]);
  EXPECT_EQ(second.at("level"), "info");
  EXPECT_FALSE(second.contains("rank"));
}

TEST_F(Log, ReplacesTextsByTheirSpellingInAnotherLanguage) {
  set_log_spelling({{"Options::folder", "folder="}, {"Options", "options"}, {"", "x"}});
  log_info("set Options::folder, or other Options");
  set_log_spelling({});
  log_info("set Options::folder");
  EXPECT_THAT(lines_, ElementsAre("set folder=, or other options\n", "set Options::folder\n"));
}

TEST_F(Log, JsonSurvivesInvalidUtf8) {
  set_log_options({.json = true});
  log_info("bad \xff byte");
  EXPECT_EQ(nlohmann::json::parse(lines_.at(0)).at("message"), "bad \xef\xbf\xbd byte");
}

TEST_F(Log, LinesOfManyThreadsDoNotMix) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 250; ++i) {
        log_info("a line");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(lines_, testing::AllOf(testing::SizeIs(1000), testing::Each("a line\n")));
}

/// Records the calls that it gets.
class Recorder final : public StatusLine {
 public:
  Recorder(std::string name, std::vector<std::string>& events)
      : name_(std::move(name)), events_(events) {}
  void hide() noexcept override { events_.push_back("hide " + name_); }
  void show() noexcept override { events_.push_back("show " + name_); }

 private:
  std::string name_;
  std::vector<std::string>& events_;
};

TEST_F(Log, HidesTheStatusLineAroundEveryLine) {
  Recorder bar("bar", lines_);
  add_status_line(bar);
  log_info("one");
  log_debug("below the level: nothing to hide for");
  around_status_line([&] { lines_.emplace_back("two"); });
  remove_status_line(bar);
  remove_status_line(bar);
  log_info("three");
  EXPECT_THAT(
      lines_,
      ElementsAre("hide bar", "one\n", "show bar", "hide bar", "two", "show bar", "three\n"));
}

TEST_F(Log, ShowsOnlyTheNewestStatusLine) {
  Recorder outer("outer", lines_);
  Recorder inner("inner", lines_);
  add_status_line(outer);
  add_status_line(inner);
  log_info("one");
  remove_status_line(inner);
  add_status_line(inner);
  lines_.emplace_back("--");
  remove_status_line(outer);
  log_info("two");
  remove_status_line(inner);
  EXPECT_THAT(
      lines_,
      ElementsAre(
          "hide outer",
          "hide inner",
          "one\n",
          "show inner",
          "show outer",
          "hide outer",
          "--",
          "hide inner",
          "two\n",
          "show inner"));
}

class LogVariables : public testing::Test {
 protected:
  ~LogVariables() override {
    ::unsetenv("LOCKSTEP_LOG_LEVEL");
    ::unsetenv("LOCKSTEP_LOG_FORMAT");
  }
};

TEST_F(LogVariables, SetLevelAndFormat) {
  EXPECT_EQ(LogOptions::from_environment().level, LogLevel::kInfo);
  EXPECT_FALSE(LogOptions::from_environment().json);
  ::setenv("LOCKSTEP_LOG_LEVEL", "warning", 1);
  ::setenv("LOCKSTEP_LOG_FORMAT", "json", 1);
  EXPECT_EQ(LogOptions::from_environment().level, LogLevel::kWarning);
  EXPECT_TRUE(LogOptions::from_environment().json);
}

TEST_F(LogVariables, RefuseUnknownValues) {
  ::setenv("LOCKSTEP_LOG_LEVEL", "loud", 1);
  EXPECT_THAT(
      [] { LogOptions::from_environment(); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("LOCKSTEP_LOG_LEVEL"), HasSubstr("'loud'"))));
  ::setenv("LOCKSTEP_LOG_LEVEL", "info", 1);
  ::setenv("LOCKSTEP_LOG_FORMAT", "xml", 1);
  EXPECT_THAT(
      [] { LogOptions::from_environment(); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("LOCKSTEP_LOG_FORMAT"), HasSubstr("'xml'"))));
}

TEST(LogToStderr, EveryLineIsOneWrite) {
  // A pipe in packet mode keeps writes apart: each read returns one write.
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_DIRECT), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    set_log_options({});
    set_process_rank({0, 2});
    log_info("first");
    log_error("second");
    ::_exit(0);
  }
  ::close(ends[1]);
  std::vector<std::string> writes;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    writes.emplace_back(buffer, static_cast<size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(writes, ElementsAre("[rank 0] first\n", "[rank 0] error: second\n"));
}

}  // namespace
}  // namespace lockstep
