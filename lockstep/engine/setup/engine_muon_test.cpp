// SPDX-License-Identifier: Apache-2.0
// An engine whose file asks for Muon, whole or in ZeRO's stages.
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/rules/muon.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(EngineMuon, UpdatesTheMatricesAndAdamTheRestInEveryStage) {
  for (const int stage : {0, 1, 2, 3}) {
    on_engine_ranks(
        stage == 3 ? 3 : 2,
        R"({"train_micro_batch_size_per_gpu": 4,
          "optimizer": {"type": "Muon", "params": {"adam_lr": 0.003, "ns_method": "standard"}},
          "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
            std::to_string(stage) + "}}",
        [](InitializeOptions options) {
          EngineNet net;
          EngineNet alone;
          auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
          EXPECT_EQ(engine.get_lr(), (std::vector<double>{0.02, 0.003}));
          optim::Muon by_hand(optim::muon_groups(
              parameters_of(*alone),
              {.lr = 0.02, .weight_decay = 0},
              {.lr = 0.003, .weight_decay = 0}));
          for (int step = 0; step < 3; ++step) {
            engine.backward(engine(engine_batch(step)).square().mean());
            engine.step();
            by_hand.zero_grad();
            alone->forward(engine_batch(step)).square().mean().backward();
            optim::clip_grad_norm_(alone->parameters(), 1.0);
            by_hand.step();
          }
          EXPECT_TRUE(at::allclose(net->fc->weight, alone->fc->weight, 0, 2e-3));
          EXPECT_TRUE(at::allclose(net->fc->bias, alone->fc->bias, 0, 1e-4));
        });
  }
}

TEST(EngineMuon, ResumesInEveryStageFromEveryOther) {
  const auto config = [](int stage) {
    return R"({"train_micro_batch_size_per_gpu": 4,
               "optimizer": {"type": "Muon", "params": {"lr": 0.01}},
               "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
           std::to_string(stage) + "}}";
  };
  const TestFolder folder;
  std::vector<double> unbroken;
  for (int saved = 0; saved <= 3; ++saved) {
    const auto dir = folder.path() / std::to_string(saved);
    on_engines(2, config(saved), [&](TestEngine& engine, EngineNet&) {
      train(engine, 0, 3);
      engine.save_checkpoint(dir);
      const auto losses = train(engine, 3, 6);
      if (saved == 0 && engine.accelerator().is_main_process()) {
        unbroken = losses;
      }
    });
  }
  for (int saved = 0; saved <= 3; ++saved) {
    for (int loaded = 0; loaded <= 3; ++loaded) {
      on_engines(loaded == 1 ? 3 : 2, config(loaded), [&](TestEngine& engine, EngineNet&) {
        engine.load_checkpoint(folder.path() / std::to_string(saved));
        EXPECT_EQ(engine.global_steps(), 3);
        const auto losses = train(engine, 3, 6);
        for (size_t i = 0; i < losses.size(); ++i) {
          EXPECT_NEAR(losses[i], unbroken[i], 1e-4) << saved << " to " << loaded;
        }
      });
    }
  }
}

TEST(EngineMuon, IsRefusedWithItsStateOnTheHost) {
  on_engine_ranks(
      2,
      R"({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Muon"},
          "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})",
      [](InitializeOptions options) {
        EngineNet net;
        EXPECT_THAT(
            [&] { initialize(net, std::move(options)); },
            ::testing::ThrowsMessage<ConfigError>(HasSubstr("muon needs full parameters")));
      });
}

}  // namespace
}  // namespace lockstep
