// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/test_numbers.h"

namespace lockstep::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

/// Records the events.
class Recorder final : public LoaderObserver {
 public:
  void pass_started(const void* loader, bool /*from_its_beginning*/) override {
    note(loader, "start");
    if (throw_at == "start") {
      throw std::runtime_error("from the observer");
    }
  }
  void batch_started(const void* loader, const BatchInfo& info) override {
    note(loader, std::to_string(info.index) + (info.is_last ? " last" : ""));
    infos.push_back(info);
  }
  void pass_ended(const void* loader) override {
    note(loader, "end");
    if (throw_at == "end") {
      throw std::runtime_error("from the observer");
    }
  }

  std::vector<std::string> events;
  std::vector<BatchInfo> infos;
  const void* expected_loader = nullptr;
  std::string throw_at;

 private:
  void note(const void* loader, const std::string& event) {
    EXPECT_EQ(loader, expected_loader);
    events.push_back(event);
  }
};

struct Observed {
  Observed() {
    recorder->expected_loader = loader.id();
    loader.set_observer(recorder);
  }
  void pass() {
    for ([[maybe_unused]] auto& batch : loader) {
    }
  }
  Loader<Numbers> loader{Numbers(7), {.batch_size = 2}};
  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
};

TEST(LoaderObserver, SeesAFullPass) {
  Observed observed;
  observed.pass();
  EXPECT_THAT(observed.recorder->events, ElementsAre("start", "0", "1", "2", "3 last", "end"));
  EXPECT_EQ(observed.recorder->infos[3].rows, 1);
}

TEST(LoaderObserver, SeesTheBatchBeforeTheBodyDoes) {
  Observed observed;
  for ([[maybe_unused]] auto& batch : observed.loader) {
    ASSERT_THAT(observed.recorder->infos, SizeIs(observed.loader.cursor().batches));
  }
}

TEST(LoaderObserver, ReportsTheRowsOfEveryRank) {
  Observed observed;
  observed.loader.shard({.rank = 1, .world = 3});
  observed.pass();
  const BatchInfo& last = observed.recorder->infos.back();
  EXPECT_TRUE(last.is_last);
  EXPECT_EQ(last.rows, 2);
  EXPECT_THAT(last.rows_per_rank, ElementsAre(2, 2, 2));
  EXPECT_THAT(last.valid_rows, ElementsAre(1, 0, 0));

  Observed uneven;
  uneven.loader.shard({.rank = 0, .world = 3, .even_batches = false});
  uneven.pass();
  EXPECT_EQ(uneven.recorder->infos.back().rows, 1);
  EXPECT_THAT(uneven.recorder->infos.back().rows_per_rank, ElementsAre(1, 0, 0));
}

TEST(LoaderObserver, SeesALoopThatEndsByBreakOrException) {
  Observed observed;
  for ([[maybe_unused]] auto& batch : observed.loader) {
    break;
  }
  EXPECT_THAT(observed.recorder->events, ElementsAre("start", "0", "end"));
  const auto leave = [&] {
    for ([[maybe_unused]] auto& batch : observed.loader) {
      throw std::domain_error("from the loop");
    }
  };
  EXPECT_THROW(leave(), std::domain_error);
  EXPECT_THAT(observed.recorder->events, ElementsAre("start", "0", "end", "start", "0", "end"));
}

TEST(LoaderObserver, CountsFromWhereAPassResumes) {
  Observed observed;
  observed.loader.load_cursor({.batches = 3});
  observed.pass();
  EXPECT_THAT(observed.recorder->events, ElementsAre("start", "3 last", "end"));
  observed.recorder->events.clear();
  observed.loader.load_cursor({.batches = 4});
  observed.pass();
  EXPECT_THAT(observed.recorder->events, ElementsAre("start", "end"));
  EXPECT_EQ(observed.loader.epoch(), 1);
}

TEST(LoaderObserver, ThatRefusesAPassKeepsThePosition) {
  Observed observed;
  observed.recorder->throw_at = "start";
  EXPECT_THROW(observed.pass(), std::runtime_error);
  EXPECT_THAT(observed.recorder->events, ElementsAre("start"));
  observed.recorder->throw_at.clear();
  observed.pass();
  EXPECT_EQ(observed.loader.cursor(), (Cursor{.seed = 0, .epoch = 1, .batches = 0}));
}

TEST(LoaderObserver, ThatThrowsAtTheEndPropagatesUnlessTheLoopEndedEarly) {
  Observed observed;
  observed.recorder->throw_at = "end";
  EXPECT_THROW(observed.pass(), std::runtime_error);
  EXPECT_EQ(observed.loader.epoch(), 1);

  std::vector<std::string> lines;
  set_log_sink([&](const std::string& line) { lines.push_back(line); });
  for ([[maybe_unused]] auto& batch : observed.loader) {
    break;
  }
  set_log_sink({});
  EXPECT_THAT(lines, ElementsAre(HasSubstr("from the observer")));
}

TEST(LoaderObserver, MayBeReplacedDuringAPassFromTheNextOn) {
  Observed observed;
  for ([[maybe_unused]] auto& batch : observed.loader) {
    observed.loader.set_observer(nullptr);
  }
  observed.pass();
  EXPECT_THAT(observed.recorder->events, ElementsAre("start", "0", "1", "2", "3 last", "end"));
}

TEST(Loader, SaysThatAPassHasNoBatches) {
  std::vector<std::string> lines;
  set_log_sink([&](const std::string& line) { lines.push_back(line); });
  Loader loader(Numbers(7), {.batch_size = 8, .drop_last = true});
  for ([[maybe_unused]] auto& batch : loader) {
    ADD_FAILURE();
  }
  set_log_sink({});
  EXPECT_THAT(
      lines,
      ElementsAre(
          HasSubstr("this pass has no batches: drop_last drops all 7 samples, fewer than the 8")));
}

}  // namespace
}  // namespace lockstep::data
