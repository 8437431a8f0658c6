// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <typename Engine>
std::vector<double> train(Engine& engine, int from, int to) {
  std::vector<double> losses;
  for (int step = from; step < to; ++step) {
    const at::Tensor loss = engine(engine_batch(step)).square().mean();
    losses.push_back(loss.template item<double>());
    engine.backward(loss);
    engine.step();
  }
  return losses;
}

TEST(EngineCheckpoint, goes_on_in_every_stage_from_every_other) {
  const TestFolder folder;
  std::vector<double> unbroken;
  on_engine_ranks(2, simple_config(1), [&](InitializeOptions options) {
    EngineNet net;
    auto made = initialize(net, std::move(options));
    const auto losses = train(std::get<0>(made), 0, 6);
    if (std::get<0>(made).accelerator().is_main_process()) {
      unbroken = losses;
    }
  });
  for (int saved = 0; saved <= 3; ++saved) {
    const auto dir = folder.path() / std::to_string(saved);
    on_engine_ranks(2, simple_config(1, saved), [&](InitializeOptions options) {
      EngineNet net;
      auto made = initialize(net, std::move(options));
      auto& engine = std::get<0>(made);
      train(engine, 0, 3);
      EXPECT_EQ(
          engine.save_checkpoint(dir, std::nullopt, {.client_state = {{"step", 7}}}),
          dir / "global_step3");
    });
    for (int loaded = 0; loaded <= 3; ++loaded) {
      on_engine_ranks(
          loaded == 1 ? 3 : 2, simple_config(1, loaded), [&](InitializeOptions options) {
            EngineNet net;
            auto made = initialize(net, std::move(options));
            auto& engine = std::get<0>(made);
            const LoadedCheckpoint from = engine.load_checkpoint(dir);
            EXPECT_EQ(from.path, dir / "global_step3");
            EXPECT_EQ(from.client_state, (nlohmann::json{{"step", 7}}));
            EXPECT_EQ(engine.global_steps(), 3);
            const auto losses = train(engine, 3, 6);
            for (size_t i = 0; i < losses.size(); ++i) {
              EXPECT_NEAR(losses[i], unbroken[i + 3], 1e-5) << saved << " to " << loaded;
            }
          });
    }
  }
}

TEST(EngineCheckpoint, the_dynamic_loss_scale_goes_on) {
  const TestFolder folder;
  const std::string config = R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "fp16": {"enabled": true, "initial_scale_power": 4, "loss_scale_window": 3}})";
  on_engine_ranks(1, config, [&](InitializeOptions options) {
    EngineNet net;
    auto made = initialize(net, options);
    auto& engine = std::get<0>(made);
    train(engine, 0, 3);
    engine.save_checkpoint(folder.path(), "half");
    train(engine, 3, 9);
    EngineNet again;
    auto resumed = initialize(again, options);
    auto& other = std::get<0>(resumed);
    other.load_checkpoint(folder.path());
    train(other, 3, 9);
    EXPECT_EQ(other.loss_scale(), engine.loss_scale());
    EXPECT_GT(other.loss_scale(), 16);
  });
}

TEST(EngineCheckpoint, nothing_to_load_is_a_warning) {
  const TestFolder folder;
  on_engine_ranks(2, simple_config(1), [&](InitializeOptions options) {
    EngineNet net;
    auto made = initialize(net, std::move(options));
    EXPECT_TRUE(std::get<0>(made).load_checkpoint(folder.path()).path.empty());
    EXPECT_THROW(std::get<0>(made).load_checkpoint(folder.path(), "not_there"), CheckpointError);
  });
}

TEST(EngineCheckpoint, a_tag_is_a_number_or_a_name_and_the_same_on_all_ranks) {
  const TestFolder folder;
  on_engine_ranks(2, simple_config(1), [&](InitializeOptions options) {
    const int rank = options.connected->group.rank();
    EngineNet net;
    auto made = initialize(net, std::move(options));
    auto& engine = std::get<0>(made);
    // The seed document tags by the loss, which differs between ranks: rank 0's counts.
    EXPECT_EQ(engine.save_checkpoint(folder.path(), 0.5 + rank), folder.path() / "0.5");
    EXPECT_EQ(engine.load_checkpoint(folder.path(), 0.5).path, folder.path() / "0.5");
    for (const char* tag : {"", "..", "a/b", "latest"}) {
      EXPECT_THROW(engine.save_checkpoint(folder.path(), tag), ConfigError) << tag;
    }
  });
  const std::string strict = R"({"train_micro_batch_size_per_gpu": 4,
    "checkpoint": {"tag_validation": "FAIL"},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})";
  on_engine_ranks(2, strict, [&](InitializeOptions options) {
    const int rank = options.connected->group.rank();
    EngineNet net;
    auto made = initialize(net, std::move(options));
    EXPECT_THAT(
        [&] { std::get<0>(made).save_checkpoint(folder.path(), rank); },
        ThrowsMessage<ConfigError>(HasSubstr("different tags: 0, 1")));
  });
}

TEST(EngineCheckpoint, the_seeds_keyword_works_too_and_latest_can_be_left) {
  const TestFolder folder;
  on_engine_ranks(1, simple_config(1), [&](InitializeOptions options) {
    EngineNet net;
    auto made = initialize(net, std::move(options));
    auto& engine = std::get<0>(made);
    engine.save_checkpoint(folder.path(), "a", {.client_sd = {{"module", "mine"}}});
    engine.save_checkpoint(folder.path(), "b", {.save_latest = false});
    const auto loaded = engine.load_checkpoint(folder.path());
    EXPECT_EQ(loaded.path, folder.path() / "a");
    EXPECT_EQ(loaded.client_state.at("module"), "mine") << "no name of ours is in the way";
    EXPECT_THROW(
        engine.save_checkpoint(folder.path(), "c", {.client_state = 1, .client_sd = 1}),
        ConfigError);
  });
}

TEST(EngineCheckpoint, what_no_engine_saved_is_refused) {
  const TestFolder folder;
  on_engine_ranks(1, simple_config(1), [&](InitializeOptions options) {
    EngineNet net;
    auto made = initialize(net, std::move(options));
    Accelerator plain({}, WorldSpec{}, Group());
    plain.save_state(folder.path() / "plain");
    EXPECT_THAT(
        [&] { std::get<0>(made).load_checkpoint(folder.path(), "plain"); },
        ThrowsMessage<CheckpointError>(HasSubstr("was not saved by an engine")));
  });
}

}  // namespace
}  // namespace lockstep
