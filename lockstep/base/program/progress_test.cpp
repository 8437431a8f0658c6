// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/program/progress.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Simulates a terminal, whose clock the test sets.
class Progress : public testing::Test {
 protected:
  Progress() {
    terminal_.on = true;
    terminal_.columns = [this] { return columns_; };
    terminal_.write = [this](const std::string& text) { written_.push_back(text); };
    terminal_.now_s = [this] { return now_s_; };
    set_log_options({});
    set_log_sink([this](const std::string& line) { written_.push_back(line); });
  }
  ~Progress() override { set_log_sink({}); }

  std::string last() const { return written_.empty() ? "" : written_.back(); }

  /// Returns the lines that a terminal would show, after '\r' and "erase to end of line".
  std::vector<std::string> screen() const {
    std::vector<std::string> lines = {""};
    size_t column = 0;
    std::string all;
    for (const std::string& text : written_) {
      all += text;
    }
    for (size_t i = 0; i < all.size(); ++i) {
      if (all.compare(i, 3, "\x1b[K") == 0) {
        lines.back().resize(column);
        i += 2;
      } else if (all[i] == '\r') {
        column = 0;
      } else if (all[i] == '\n') {
        lines.emplace_back();
        column = 0;
      } else {
        lines.back().resize(std::max(lines.back().size(), column + 1));
        lines.back()[column++] = all[i];
      }
    }
    return lines;
  }

  ProgressTerminal terminal_;
  int columns_ = 80;
  double now_s_ = 1000;
  std::vector<std::string> written_;
};

TEST_F(Progress, ShowsLabelBarCountRateTimeLeftAndNote) {
  ProgressBar bar({.label = "epoch 1", .total = 200, .unit = "batches"}, terminal_);
  bar.set_note("loss 0.312");
  now_s_ += 4;
  bar.advance(50);
  EXPECT_THAT(
      screen(),
      ElementsAre(
          "epoch 1 [####--------------]  25% 50/200  12.5 batches/s  0:12 left  loss 0.312"));
}

TEST_F(Progress, EveryDrawingEndsWithACarriageReturn) {
  ProgressBar bar({.total = 10}, terminal_);
  now_s_ += 1;
  bar.advance();
  ASSERT_EQ(written_.size(), 2U);
  for (const std::string& text : written_) {
    EXPECT_EQ(text.back(), '\r');
    EXPECT_THAT(text, Not(HasSubstr("\n")));
  }
}

TEST_F(Progress, WithoutATotalShowsCounterAndRateOnly) {
  ProgressBar bar({.label = "reading", .unit = "files"}, terminal_);
  now_s_ += 2;
  bar.advance(300);
  EXPECT_THAT(screen(), ElementsAre("reading 300 files  150 files/s"));
}

TEST_F(Progress, AnEmptyLoopIsCompleteFromTheStart) {
  ProgressBar bar({.total = 0}, terminal_);
  EXPECT_THAT(last(), HasSubstr("100% 0/0"));
}

TEST_F(Progress, MoreThanTheTotalDoesNotBreakTheBar) {
  ProgressBar bar({.total = 10}, terminal_);
  now_s_ += 1;
  bar.advance(25);
  EXPECT_THAT(last(), HasSubstr("[############################] 100% 25/10"));
  EXPECT_THAT(last(), HasSubstr("0:00 left"));
}

TEST_F(Progress, IsDrawnAtMostTenTimesASecond) {
  ProgressBar bar({.total = 100000}, terminal_);
  for (int i = 0; i < 2000; ++i) {
    now_s_ += 0.001;
    bar.advance();
    bar.set_note("n");
  }
  EXPECT_LE(written_.size(), 21U);
  EXPECT_GE(written_.size(), 18U);
}

TEST_F(Progress, TheRateFollowsTheLastSeconds) {
  ProgressBar bar({.total = 1000000}, terminal_);
  for (int i = 0; i < 100; ++i) {
    now_s_ += 1;
    bar.advance(1000);
  }
  EXPECT_THAT(last(), HasSubstr("1000 it/s"));
  for (int i = 0; i < 100; ++i) {
    now_s_ += 1;
    bar.advance(10);
  }
  EXPECT_THAT(last(), HasSubstr("10.0 it/s"));
}

TEST_F(Progress, EarlierProgressDoesNotCountTowardsTheRate) {
  ProgressBar bar({.total = 1000, .initial = 900}, terminal_);
  now_s_ += 10;
  bar.advance(50);
  EXPECT_THAT(last(), HasSubstr("95% 950/1000  5.0 it/s  0:10 left"));
  bar.finish();
  EXPECT_THAT(last(), HasSubstr("950/1000 it in 10.0 s  5.0 it/s"));
}

TEST_F(Progress, IsCutToTheWidthTheTerminalHasNow) {
  ProgressBar bar({.label = "epoch 1", .total = 200}, terminal_);
  for (int columns : {200, 60, 40, 20, 8, 2, 1}) {
    columns_ = columns;
    now_s_ += 1;
    bar.advance();
    EXPECT_LE(screen().back().size(), static_cast<size_t>(std::max(1, columns - 1))) << columns;
  }
  columns_ = 40;
  now_s_ += 1;
  bar.advance();
  EXPECT_THAT(screen().back(), HasSubstr("epoch 1   4% 8/200"));
}

TEST_F(Progress, CountsCharactersNotBytesAndNeverSplitsOne) {
  terminal_.utf8 = true;
  terminal_.blocks = true;
  ProgressBar bar({.label = "époque ééééé", .total = 16}, terminal_);
  columns_ = 60;
  now_s_ += 1;
  bar.advance(6);
  // 59 columns less 13 of label, 30 of figures and a space: 15 of bar, 5.625 of them full.
  EXPECT_THAT(last(), HasSubstr("époque ééééé █████▋           37% 6/16"));
  columns_ = 10;
  now_s_ += 1;
  bar.advance();
  EXPECT_EQ(last(), "époque éé\x1b[K\r");
}

TEST_F(Progress, WithoutUtf8WritesAsciiAlone) {
  ProgressBar bar({.label = "époque", .total = 10, .unit = "données"}, terminal_);
  bar.set_note("α = 1");
  now_s_ += 1;
  bar.advance(5);
  bar.finish();
  for (const std::string& text : written_) {
    for (char c : text) {
      EXPECT_LT(static_cast<unsigned char>(c), 0x80U) << text;
    }
  }
  EXPECT_THAT(last(), HasSubstr("?poque: 5/10 donn?es"));
}

TEST_F(Progress, ControlCharactersInLabelAndNoteCannotBreakTheLine) {
  ProgressBar bar({.label = "a\nb", .total = 10}, terminal_);
  now_s_ += 1;
  bar.set_note("c\r\x1b[2Jd");
  EXPECT_EQ(screen().size(), 1U);
  EXPECT_THAT(last(), HasSubstr("a b ["));
  EXPECT_THAT(last(), HasSubstr("c  [2Jd"));
}

TEST_F(Progress, ColoursTheBarOnlyWhenAsked) {
  { ProgressBar bar({.total = 2}, terminal_); }
  EXPECT_THAT(written_.front(), Not(HasSubstr("\x1b[32m")));
  written_.clear();
  terminal_.colour = true;
  ProgressBar bar({.total = 2}, terminal_);
  EXPECT_THAT(last(), HasSubstr("\x1b[32m["));
  EXPECT_THAT(last(), HasSubstr("\x1b[0m"));
}

TEST_F(Progress, FinishLeavesOneLineWithTimeAndAverageRate) {
  ProgressBar bar({.label = "epoch 1", .total = 100, .unit = "batches"}, terminal_);
  now_s_ += 1;
  bar.advance(90);
  bar.set_note("loss 0.1");
  now_s_ += 79;
  bar.advance(10);
  bar.finish();
  bar.finish();
  bar.advance();
  bar.set_note("late");
  EXPECT_THAT(
      screen(), ElementsAre("epoch 1: 100/100 batches in 1:20  1.2 batches/s  loss 0.1", ""));
  EXPECT_EQ(bar.done(), 100);
}

TEST_F(Progress, DestructionErasesNothingAndEndsTheLine) {
  {
    ProgressBar bar({.label = "epoch 1", .total = 2}, terminal_);
    now_s_ += 1;
    bar.advance();
  }
  ASSERT_EQ(screen().size(), 2U);
  EXPECT_THAT(screen()[0], HasSubstr("1/2"));
  EXPECT_EQ(screen()[1], "");
}

TEST_F(Progress, ALogLineIsAboveTheBar) {
  ProgressBar bar({.label = "epoch 1", .total = 2}, terminal_);
  log_info("saved");
  log_warning("late");
  ASSERT_EQ(screen().size(), 3U);
  EXPECT_EQ(screen()[0], "saved");
  EXPECT_EQ(screen()[1], "warning: late");
  EXPECT_THAT(screen()[2], HasSubstr("epoch 1 ["));
  bar.finish();
  EXPECT_THAT(screen()[2], HasSubstr("epoch 1: 0/2"));
  log_info("after");
  EXPECT_THAT(screen()[3], "after");
  EXPECT_EQ(screen()[4], "");
}

TEST_F(Progress, OtherLinesCanBeAboveTheBarToo) {
  ProgressBar bar({.total = 2}, terminal_);
  around_status_line([&] { written_.emplace_back("a printed line\n"); });
  EXPECT_EQ(screen()[0], "a printed line");
  EXPECT_THAT(screen()[1], HasSubstr("0/2"));
}

TEST_F(Progress, OfTwoBarsTheNewestIsDrawnAndThenTheOlder) {
  ProgressBar outer({.label = "epochs", .total = 3}, terminal_);
  {
    ProgressBar inner({.label = "batches", .total = 10}, terminal_);
    now_s_ += 1;
    outer.advance();
    EXPECT_THAT(screen(), ElementsAre(HasSubstr("batches [")));
    inner.finish();
  }
  EXPECT_THAT(screen(), ElementsAre(HasSubstr("batches: 0/10"), HasSubstr("1/3")));
  outer.finish();
  EXPECT_THAT(screen(), ElementsAre(HasSubstr("batches: 0/10"), HasSubstr("epochs: 1/3"), ""));
}

TEST_F(Progress, AnInnerBarIsDrawnBehindThoseAroundIt) {
  ProgressBar epochs({.label = "epochs", .total = 3, .initial = 1}, terminal_);
  {
    ProgressBar batches({.label = "train", .total = 10}, terminal_);
    now_s_ += 1;
    batches.advance(5);
    EXPECT_THAT(screen(), ElementsAre(testing::StartsWith("epochs 1/3 > train [#########")));
    log_info("saved");
    EXPECT_THAT(
        screen(), ElementsAre("saved", testing::StartsWith("epochs 1/3 > train [#########")));
    columns_ = 50;
    now_s_ += 1;
    batches.advance();
    // Too narrow for both and a bar.
    EXPECT_THAT(screen().back(), testing::StartsWith("train [###"));
    batches.finish();
  }
  now_s_ += 1;
  epochs.advance();
  EXPECT_THAT(screen().back(), testing::StartsWith("epochs [####"));
  ProgressBar later({.label = "test", .total = 10}, terminal_);
  EXPECT_THAT(screen().back(), testing::StartsWith("epochs 2/3 > test "));
}

TEST_F(Progress, ABarThatHasEndedIsNotAroundLaterOnes) {
  ProgressBar ended({.label = "load", .total = 3}, terminal_);
  ended.finish();
  ProgressBar bar({.label = "train", .total = 10}, terminal_);
  EXPECT_THAT(last(), testing::StartsWith("train ["));
}

TEST_F(Progress, ShowsValuesByNameAndTheProgramsReplaceLiveOnes) {
  ProgressBar bar(
      {.label = "train",
       .total = 2,
       .live =
           [] {
             return ProgressValues{{"loss", "9"}, {"memory", "1.4 GB"}};
           }},
      terminal_);
  EXPECT_THAT(last(), HasSubstr("0/2  loss 9  memory 1.4 GB"));
  bar.set_value("accuracy", 0.123456);
  bar.set_value("loss", 0.3125);
  bar.set_note("warm-up");
  now_s_ += 1;
  bar.advance();
  columns_ = 100;
  now_s_ += 1;
  bar.advance();
  EXPECT_THAT(last(), HasSubstr("loss 0.3125  memory 1.4 GB  accuracy 0.1235  warm-up"));
  bar.finish();
  EXPECT_THAT(last(), HasSubstr("2/2 it in 2.0 s  1.0 it/s  loss 0.3125  memory 1.4 GB"));
}

TEST_F(Progress, WithoutATerminalLogsALineEveryFewSeconds) {
  terminal_.on = false;
  terminal_.line_s = 30;
  ProgressBar epochs({.label = "epochs", .total = 3}, terminal_);
  ProgressBar bar({.label = "train", .total = 100, .unit = "batches"}, terminal_);
  bar.set_value("loss", 0.5);
  now_s_ += 29;
  bar.advance(29);
  EXPECT_TRUE(written_.empty());
  now_s_ += 1;
  bar.advance();
  now_s_ += 1;
  bar.advance();
  now_s_ += 69;
  bar.advance(69);
  bar.finish();
  EXPECT_THAT(
      written_,
      ElementsAre(
          "epochs 0/3 > train: 30% 30/100  1.0 batches/s  1:10 left  loss 0.5\n",
          "epochs 0/3 > train: 100% 100/100  1.0 batches/s  0:00 left  loss 0.5\n",
          "train: 100/100 batches in 1:40  1.0 batches/s  loss 0.5\n"));
}

TEST_F(Progress, AShortLoopWithoutATerminalLogsNothing) {
  terminal_.on = false;
  terminal_.line_s = 30;
  ProgressBar bar({.total = 2}, terminal_);
  now_s_ += 29;
  bar.advance(2);
  bar.finish();
  EXPECT_TRUE(written_.empty());
}

TEST_F(Progress, WritesNothingWhenOff) {
  terminal_.on = false;
  {
    ProgressBar bar({.total = 2}, terminal_);
    now_s_ += 1;
    bar.advance();
    bar.set_note("n");
    bar.finish();
    EXPECT_EQ(bar.done(), 1);
    EXPECT_FALSE(bar.on());
  }
  EXPECT_TRUE(written_.empty());
}

TEST_F(Progress, ASinkThatThrowsDoesNotStopTheLoop) {
  terminal_.write = [](const std::string&) { throw Error("sink", "gone"); };
  ProgressBar bar({.total = 2}, terminal_);
  now_s_ += 1;
  EXPECT_NO_THROW(bar.advance());
  EXPECT_NO_THROW(log_info("line"));
  EXPECT_NO_THROW(bar.finish());
}

TEST_F(Progress, ThreadsMayAdvanceAndLogAtOnce) {
  // The clock stands still, so nothing but log lines makes the bar draw; the log's lock keeps
  // order.
  terminal_.now_s = [] { return 1.0; };
  ProgressBar bar({.total = 4000}, terminal_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        bar.advance();
        if (i % 100 == 0) {
          log_info("line");
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(bar.done(), 4000);
  const std::vector<std::string> lines = screen();
  ASSERT_EQ(lines.size(), 41U);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(lines[i], "line");
  }
}

}  // namespace
}  // namespace lockstep
