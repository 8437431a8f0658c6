// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/program/progress.h"
#include "lockstep/base/program/test_pty.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

ProgressTerminal from(
    std::map<std::string, std::string> values, bool tty = true, bool main = true) {
  return ProgressTerminal::from(Environment::of(std::move(values)), tty, main);
}

TEST(ProgressTerminal, IsOnOnlyInTheMainProcessOnATerminal) {
  EXPECT_TRUE(from({}).on);
  EXPECT_FALSE(from({}, false).on);
  EXPECT_FALSE(from({}, true, false).on);
  EXPECT_FALSE(from({{"LOCKSTEP_TERMINAL", "80"}}, true, false).on);
}

TEST(ProgressTerminal, LogsLinesInTheMainProcessWithoutATerminal) {
  EXPECT_EQ(from({}).line_s, 0);
  EXPECT_EQ(from({}, false).line_s, 30);
  EXPECT_EQ(from({{"TERM", "dumb"}}).line_s, 30);
  EXPECT_EQ(from({}, false, false).line_s, 0);
  EXPECT_EQ(from({{"LOCKSTEP_PROGRESS_SECONDS", "5"}}, false).line_s, 5);
  EXPECT_EQ(from({{"LOCKSTEP_PROGRESS_SECONDS", "0"}}, false).line_s, 0);
  EXPECT_EQ(from({{"LOCKSTEP_PROGRESS", "0"}}, false).line_s, 0);
  EXPECT_THROW(from({{"LOCKSTEP_PROGRESS_SECONDS", "-1"}}), ConfigError);
}

TEST(ProgressTerminal, BelievesTheLauncherAboutItsTerminal) {
  const ProgressTerminal terminal = from({{"LOCKSTEP_TERMINAL", "123"}}, false);
  EXPECT_TRUE(terminal.on);
  EXPECT_EQ(terminal.columns(), 123);
  EXPECT_THROW(from({{"LOCKSTEP_TERMINAL", "wide"}}), ConfigError);
  EXPECT_THROW(from({{"LOCKSTEP_TERMINAL", "0"}}), ConfigError);
}

/// Sets the environment of a child with a plain terminal.
void use_plain_terminal() {
  ::setenv("TERM", "xterm", 1);
  ::setenv("LC_ALL", "C", 1);
  ::setenv("NO_COLOR", "1", 1);
  ::unsetenv("LOCKSTEP_PROGRESS");
  set_log_options({});
}

TEST(ProgressTerminal, ARealTerminalIsFoundAndMeasured) {
  constexpr int kColumns = 50;
  TestPty pty(
      [] {
        use_plain_terminal();
        ProgressBar bar({.label = "epoch 1", .total = 2});
        bar.advance(2);
        bar.finish();
        return bar.on() ? 0 : 1;
      },
      kColumns);
  EXPECT_EQ(pty.wait(), 0);
  // 49 columns: 8 of label, 8 of figures, a space, and the rest bar, of which 30 is the most.
  EXPECT_THAT(
      pty.shown(), testing::StartsWith("epoch 1 [" + std::string(28, '-') + "]   0% 0/2\x1b[K\r"));
  EXPECT_THAT(pty.shown(), HasSubstr("epoch 1: 2/2 it in 0.0 s"));
}

TEST(ProgressTerminal, NestedBarsAndLogLinesShareARealTerminal) {
  TestPty pty([] {
    use_plain_terminal();
    ProgressBar epochs({.label = "epochs", .total = 3, .initial = 1});
    ProgressBar batches({.label = "train", .total = 2});
    log_info("saved");
    batches.finish();
    epochs.finish();
    return 0;
  });
  const std::string bar = "[" + std::string(28, '-') + "]";
  pty.await("epochs [#########-------------------]  33% 1/3\x1b[K\r");
  // The inner bar replaces the outer one, and continues below a log line.
  pty.await("\x1b[K\repochs 1/3 > train " + bar + "   0% 0/2\x1b[K\r");
  pty.await("\x1b[K\rsaved\r\nepochs 1/3 > train " + bar + "   0% 0/2\x1b[K\r");
  pty.await("\x1b[K\rtrain: 0/2 it in ");
  pty.await("\r\nepochs [####");
  pty.await("\x1b[K\repochs: 1/3 it in ");
  EXPECT_EQ(pty.wait(), 0);
}

TEST(ProgressTerminal, CanBeSwitchedOff) {
  EXPECT_FALSE(from({{"LOCKSTEP_PROGRESS", "0"}}).on);
  EXPECT_FALSE(from({{"LOCKSTEP_PROGRESS", "0"}, {"LOCKSTEP_TERMINAL", "80"}}, false).on);
  EXPECT_FALSE(from({{"TERM", "dumb"}}).on);
  EXPECT_TRUE(from({{"LOCKSTEP_PROGRESS", "1"}, {"TERM", "xterm"}}).on);
  EXPECT_THROW(from({{"LOCKSTEP_PROGRESS", "perhaps"}}), ConfigError);
}

TEST(ProgressTerminal, TakesBlocksFromTheLocaleAndColourFromNoColor) {
  EXPECT_FALSE(from({}).blocks);
  EXPECT_TRUE(from({}).colour);
  EXPECT_TRUE(from({{"LANG", "de_DE.UTF-8"}}).blocks);
  EXPECT_TRUE(from({{"LC_CTYPE", "C.utf8"}, {"LANG", "C"}}).utf8);
  EXPECT_FALSE(from({{"LC_ALL", "C"}, {"LANG", "de_DE.UTF-8"}}).utf8);
  const ProgressTerminal plain = from({{"NO_COLOR", "1"}, {"LANG", "de_DE.UTF-8"}});
  EXPECT_FALSE(plain.colour);
  EXPECT_FALSE(plain.blocks);
  EXPECT_TRUE(plain.utf8);
}

}  // namespace
}  // namespace lockstep
