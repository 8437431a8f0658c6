// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"

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

/// Stores text and images too.
class NotedMedia final : public NotedCalls {
 public:
  std::string name() const override { return "media"; }
  bool stores(tracking::MediaKind kind) const override {
    return kind != tracking::MediaKind::kHistograms;
  }

 private:
  void do_log_images(const tracking::ImageBatches& images, int64_t step) override {
    for (const auto& [tag, batch] : images) {
      calls.push_back(
          tag + " of " + std::to_string(batch.count) + " images at " + std::to_string(step));
    }
  }
  void do_log_text(const tracking::Texts& texts, int64_t step) override {
    calls.push_back(texts.at("note") + " at " + std::to_string(step));
  }
};

TEST(OwnTrackers, GetTheMediaThatTheyStore) {
  const auto plain = std::make_shared<NotedCalls>();
  const auto media = std::make_shared<NotedMedia>();
  accelerated_ranks(2, {.log_with = {plain, media}}, [](Accelerator& accelerator) {
    accelerator.log_images({{"samples", torch::zeros({2, 3, 4, 4})}}, 5);
    accelerator.log_text({{"note", "hello"}});
  });
  EXPECT_THAT(plain->calls, IsEmpty());
  EXPECT_THAT(media->calls, ElementsAre("samples of 2 images at 5", "hello at 0"));
}

TEST(OwnTrackers, MediaThatNoneStoresAreRefused) {
  Accelerator accelerator({.log_with = {std::make_shared<NotedMedia>()}}, WorldSpec{}, Group());
  EXPECT_THAT(
      [&] {
        accelerator.log_histograms({{"w", torch::zeros({2})}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("no tracker stores histograms; got media")));
}

TEST(OwnTrackers, GetTrackerFindsThemByNameAndIsBlankOnOtherProcesses) {
  const auto mine = std::make_shared<NotedCalls>();
  accelerated_ranks(2, {.log_with = {mine}}, [&](Accelerator& accelerator) {
    EXPECT_THAT(
        [&] { accelerator.get_tracker("noted"); },
        ThrowsMessage<ConfigError>(HasSubstr("call init_trackers() first")));
    accelerator.init_trackers(nlohmann::json::object());
    const auto found = accelerator.get_tracker("noted");
    EXPECT_EQ(found->name(), "noted");
    EXPECT_EQ(found == mine, accelerator.is_main_process());
    found->log({{"loss", 3}}, 1);
    EXPECT_THAT(
        [&] { accelerator.get_tracker("wandb"); },
        ThrowsMessage<ConfigError>(
            HasSubstr("there is no tracker 'wandb'; got log_with = {noted}")));
  });
  EXPECT_THAT(mine->calls, ElementsAre("loss 3 at 1"));
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
