// SPDX-License-Identifier: Apache-2.0
// ds_config.json's fp16 section controls the loss scale, and its schedule the momentum.
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string half_config(const std::string& fp16, int stage = 0) {
  return R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    "fp16": {"enabled": true, )" +
         fp16 + R"(}, "zero_optimization": {"stage": )" + std::to_string(stage) + "}}";
}

template <typename Engine>
void update(Engine& engine, bool overflows) {
  engine.backward(engine(engine_batch(0)).mean() * (overflows ? INFINITY : 1));
  engine.step();
}

/// The scale after each update of two ranks.
std::vector<double> scales(const std::string& config, const std::vector<bool>& overflows) {
  std::vector<double> all;
  on_engines(2, config, [&](TestEngine& engine, EngineNet&) {
    for (const bool overflow : overflows) {
      update(engine, overflow);
      const double scale = engine.loss_scale();
      if (engine.accelerator().is_main_process()) {
        all.push_back(scale);
      }
    }
  });
  return all;
}

TEST(EngineScale, HysteresisOfTheFileCountsOverflows) {
  EXPECT_THAT(
      scales(half_config(R"("initial_scale_power": 3, "hysteresis": 3)", 1), {true, true, true}),
      ElementsAre(8, 8, 4));
  const std::string two = R"("initial_scale_power": 3, "hysteresis": 2)";
  EXPECT_THAT(scales(half_config(two, 1), {true, false, true}), ElementsAre(8, 8, 4));
  EXPECT_THAT(
      scales(half_config(two + R"(, "consecutive_hysteresis": true)", 1), {true, false, true}),
      ElementsAre(8, 8, 8));
}

TEST(EngineScale, AnOverflowAtTheFilesMinimumEndsARunOfZero) {
  const std::string fp16 = R"("initial_scale_power": 3, "hysteresis": 1, "min_loss_scale": 4)";
  EXPECT_THAT(scales(half_config(fp16, 0), {true, true}), ElementsAre(4, 4));
  on_engines(2, half_config(fp16, 1), [](TestEngine& engine, EngineNet&) {
    update(engine, true);
    EXPECT_EQ(engine.loss_scale(), 4);
    EXPECT_THAT(
        [&] { update(engine, true); }, ThrowsMessage<Error>(HasSubstr("at its minimum, 4")));
  });
}

TEST(EngineScale, TheFirstScaleMayBeAnyPowerThatTheTableAllows) {
  for (const int power : {0, 62, 63, 64, 127}) {
    on_engines(
        1,
        half_config("\"initial_scale_power\": " + std::to_string(power)),
        [&](TestEngine& engine, EngineNet&) {
          EXPECT_EQ(engine.loss_scale(), std::ldexp(1.0, power));
          EXPECT_EQ(engine.accelerator().scaler()->get_scale(), std::ldexp(1.0, power));
        });
  }
}

TEST(EngineScale, TheFilesKindOfScaleCountsAfterLoadingAnother) {
  const TestFolder folder;
  const std::string fixed = half_config(R"("loss_scale": 128)");
  const std::string dynamic = half_config(R"("initial_scale_power": 4)");
  const auto save = [&](const std::string& config, const char* tag) {
    on_engines(1, config, [&](TestEngine& engine, EngineNet&) {
      update(engine, false);
      engine.save_checkpoint(folder.path(), tag);
    });
  };
  const auto expect = [&](const std::string& config, const char* tag, double scale) {
    on_engines(1, config, [&](TestEngine& engine, EngineNet&) {
      engine.load_checkpoint(folder.path(), tag);
      EXPECT_EQ(engine.loss_scale(), scale);
      EXPECT_EQ(engine.accelerator().scaler()->get_scale(), scale);
      update(engine, false);
      EXPECT_TRUE(engine.was_step_applied());
      EXPECT_EQ(engine.accelerator().scaler()->get_scale(), scale);
    });
  };
  save(fixed, "fixed");
  save(dynamic, "dynamic");
  expect(dynamic, "fixed", 16);
  expect(fixed, "dynamic", 128);
  expect(fixed, "fixed", 128);
  expect(dynamic, "dynamic", 16);
}

std::string cycle_config(const std::string& optimizer) {
  return R"({"train_micro_batch_size_per_gpu": 4, "optimizer": )" + optimizer +
         R"(, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.01,
           "cycle_max_lr": 0.1, "cycle_first_step_size": 4}}})";
}

TEST(EngineScale, DeepspeedsOneCycleMovesBetasAndNoOtherMomentum) {
  struct Seen {
    std::vector<double> before;
    std::vector<double> after;
    std::vector<double> rates;
    std::string said;
  };
  const auto seen_with = [](const std::string& optimizer) {
    Seen seen;
    set_log_sink([&](const std::string& line) { seen.said += line + "\n"; });
    on_engines(1, cycle_config(optimizer), [&](TestEngine& engine, EngineNet&) {
      seen.before = engine.get_mom();
      update(engine, false);
      seen.after = engine.get_mom();
      seen.rates = engine.get_lr();
    });
    set_log_sink({});
    return seen;
  };
  const char* const warning = "its momentum stays constant";
  const Seen adam = seen_with(R"({"type": "AdamW", "params": {"lr": 0.01}})");
  EXPECT_THAT(adam.before, ElementsAre(0.8));
  EXPECT_GT(adam.after.front(), 0.8);
  EXPECT_THAT(adam.said, ::testing::Not(HasSubstr(warning)));
  const Seen sgd = seen_with(R"({"type": "SGD", "params": {"lr": 0.01, "momentum": 0.5}})");
  EXPECT_THAT(sgd.before, ElementsAre(0.5));
  EXPECT_THAT(sgd.after, ElementsAre(0.5));
  EXPECT_GT(sgd.rates.front(), 0.01);
  EXPECT_THAT(sgd.said, HasSubstr(warning));
  EXPECT_GT(seen_with(R"({"type": "Adagrad", "params": {"lr": 0.01}})").rates.front(), 0.01);
  const Seen capturable =
      seen_with(R"({"type": "SGD", "params": {"momentum": 0.5, "capturable": true}})");
  EXPECT_THAT(capturable.after, ElementsAre(0.5));
  const Seen muon = seen_with(R"({"type": "Muon"})");
  EXPECT_EQ(muon.after, muon.before);
}

}  // namespace
}  // namespace lockstep
