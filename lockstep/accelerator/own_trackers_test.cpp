// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

/// A program's tracker: writes down what it is asked for.
class NotedCalls : public tracking::Tracker {
 public:
  explicit NotedCalls(bool main_only = true) : main_only_(main_only) {}

  std::string name() const override { return "noted"; }
  bool main_process_only() const override { return main_only_; }

  std::vector<std::string> calls;

 private:
  void do_store_config(const nlohmann::json& config) override { note("config " + config.dump()); }
  void do_log(const tracking::Values& values, int64_t step) override {
    for (const auto& [tag, value] : values) {
      note(tag + " " + std::to_string(static_cast<int>(value)) + " at " + std::to_string(step));
    }
  }
  void do_flush() override { note("flush"); }
  void do_finish(tracking::RunStatus status) override {
    note(std::string("finish ") + tracking::name_of(status));
  }
  void note(const std::string& call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls.push_back(call);
  }

  bool main_only_;
  std::mutex mutex_;
};

TEST(OwnTrackers, AreUsedTogetherWithLockstepsByName) {
  const TestFolder folder;
  const auto mine = std::make_shared<NotedCalls>();
  const AcceleratorOptions options = {
      .log_with = {"jsonl", mine, std::string("csv")}, .project_dir = folder.path()};
  accelerated_ranks(2, options, [](Accelerator& accelerator) {
    accelerator.init_trackers({{"lr", 1}});
    accelerator.log({{"loss", 3}}, 7);
    accelerator.end_training();
  });
  EXPECT_THAT(mine->calls, ElementsAre("config {\"lr\":1}", "loss 3 at 7", "finish finished"));
  EXPECT_TRUE(std::filesystem::exists(folder / "logs" / "metrics.jsonl"));
  EXPECT_TRUE(std::filesystem::exists(folder / "logs" / "loss.csv"));
}

TEST(OwnTrackers, AloneNeedNoProjectDir) {
  const auto mine = std::make_shared<NotedCalls>();
  Accelerator accelerator({.log_with = {mine}}, WorldSpec{}, Group());
  accelerator.log({{"loss", 3}}, 1);
  EXPECT_THAT(mine->calls, ElementsAre("loss 3 at 1"));
}

TEST(OwnTrackers, AreUsedOnEveryProcessIfTheySaySo) {
  const auto on_all = std::make_shared<NotedCalls>(false);
  const auto on_main = std::make_shared<NotedCalls>();
  accelerated_ranks(3, {.log_with = {on_all, on_main}}, [](Accelerator& accelerator) {
    accelerator.log({{"loss", 3}}, 1);
  });
  EXPECT_THAT(on_all->calls, ElementsAre("loss 3 at 1", "loss 3 at 1", "loss 3 at 1"));
  EXPECT_THAT(on_main->calls, ElementsAre("loss 3 at 1"));
}

TEST(OwnTrackers, ThatAreNullAreRefusedOnEveryProcess) {
  const auto mine = std::make_shared<NotedCalls>();
  accelerated_ranks(
      2, {.log_with = {mine, std::shared_ptr<NotedCalls>()}}, [](Accelerator& accelerator) {
        EXPECT_THAT(
            [&] { accelerator.init_trackers(nlohmann::json::object()); },
            ThrowsMessage<ConfigError>(HasSubstr("log_with holds a null pointer")));
      });
  EXPECT_THAT(mine->calls, IsEmpty());
}

}  // namespace
}  // namespace lockstep
