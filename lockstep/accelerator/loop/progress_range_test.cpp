// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/progress_range.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/diagnostics/progress_values.h"
#include "lockstep/accelerator/test_loops.h"
#include "lockstep/base/log.h"
#include "lockstep/base/test_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

/// Collects the plain lines of bars without a terminal, which are due once a second.
class ProgressLines : public testing::Test {
 protected:
  ProgressLines() {
    ::setenv("LOCKSTEP_PROGRESS_SECONDS", "1", 1);
    ::setenv("TERM", "dumb", 1);  // No bar, even if a developer's terminal is at stderr.
    set_log_sink([this](const std::string& line) { lines_.push_back(line); });
  }
  ~ProgressLines() override {
    set_log_sink({});
    ::unsetenv("LOCKSTEP_PROGRESS_SECONDS");
  }
  /// Updates a bar until it has logged a line.
  template <typename Progress>
  void await_line(Progress& progress) {
    const size_t before = lines_.size();
    while (lines_.size() == before) {
      progress.set_note("");
    }
  }

  std::vector<std::string> lines_;
};

TEST_F(ProgressLines, ALoopOfAnyRangeHasItsCountAndFinalLine) {
  auto progress = with_progress(std::vector<int>{3, 4}, "files");
  int sum = 0;
  for (const int each : progress) {
    sum += each;
    progress.set_value("sum", sum);
    if (lines_.empty()) {
      await_line(progress);
    }
  }
  EXPECT_EQ(sum, 7);
  ASSERT_FALSE(lines_.empty());
  EXPECT_THAT(lines_.front(), AllOf(HasSubstr("files: 0% 0/2"), HasSubstr("sum 3\n")));
  EXPECT_THAT(lines_.back(), ContainsRegex("files: 2/2 it in [0-9.]+ s  .*sum 7\n"));
}

TEST_F(ProgressLines, AResumedLoaderAndItsEpochBeginWhereTheyWere) {
  const TestFolder folder;
  {
    Accelerator before({}, WorldSpec{}, Group());
    auto loader = before.prepare(numbers(10, {.batch_size = 2}));
    for (const int64_t epoch : before.epochs(4)) {
      for (auto& batch : loader) {
        if (epoch == 3 && batch.data[0].item<float>() == 2) {
          before.save_state(folder / "save");
        }
      }
    }
  }
  Accelerator accelerator({}, WorldSpec{}, Group());
  auto loader = accelerator.prepare(numbers(10, {.batch_size = 2}));
  accelerator.load_state(folder / "save");
  auto epochs = accelerator.progress(accelerator.epochs(4), "epochs");
  std::vector<int64_t> seen;
  for (const int64_t epoch : epochs) {
    seen.push_back(epoch);
    auto batches = accelerator.progress(loader, "epoch 4");
    for (auto& batch : batches) {
      EXPECT_EQ(batch.data.size(0), 2);
      if (lines_.empty()) {
        await_line(batches);
      }
    }
  }
  EXPECT_THAT(seen, testing::ElementsAre(3));
  ASSERT_GE(lines_.size(), 3U);
  EXPECT_THAT(lines_.front(), HasSubstr("epochs 3/4 > epoch 4: 40% 2/5  memory "));
  EXPECT_THAT(lines_, Each(HasSubstr("memory ")));
  EXPECT_THAT(lines_.back(), ContainsRegex("epochs: 4/4 epochs in "));
}

TEST_F(ProgressLines, AShortLoopLogsNothing) {
  for (const int64_t epoch : with_progress(EpochRange(0, 3), "epochs")) {
    EXPECT_LT(epoch, 3);
  }
  EXPECT_THAT(lines_, IsEmpty());
}

TEST(ProgressValues, AreTheLastLossAndTheMemoryOfTheProcess) {
  internal::LossWatch losses(/*enabled=*/true);
  ASSERT_EQ(internal::progress_values(losses, at::kCPU).size(), 1U);
  EXPECT_EQ(internal::progress_values(losses, at::kCPU)[0].first, "memory");
  EXPECT_THAT(
      internal::progress_values(losses, at::kCPU)[0].second, ContainsRegex("^[0-9.]+ [MG]B$"));
  losses.loss_given({at::full({}, 0.3125)});
  EXPECT_THAT(
      internal::progress_values(losses, at::kCPU)[0],
      testing::Pair(std::string("loss"), std::string("0.3125")));
}

}  // namespace
}  // namespace lockstep
