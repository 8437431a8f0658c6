// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string backward_config(int micro_steps, int stage, const std::string& more = "") {
  std::string text = simple_config(micro_steps, stage);
  text.pop_back();
  return text + more + "}";
}

constexpr const char* kFp16 = R"(, "fp16": {"enabled": true, "initial_scale_power": 8})";

TEST(Backward, KeepsTheGraphIfItIsTo) {
  for (const bool watched : {false, true}) {
    const std::string config =
        backward_config(1, 0, watched ? R"(, "wall_clock_breakdown": true)" : "");
    on_engines(1, config, [](TestEngine& engine, EngineNet& net) {
      const at::Tensor loss = engine(engine_batch(0)).square().mean();
      engine.backward(loss, {.retain_graph = true});
      const at::Tensor once = net->fc->weight.grad().clone();
      engine.backward(loss);
      EXPECT_TRUE(at::allclose(net->fc->weight.grad(), 2 * once));
      EXPECT_ANY_THROW(engine.backward(loss)) << "the graph is gone";
    });
  }
}

TEST(Backward, DoesNotDivideTheLossOnRequest) {
  on_engines(1, simple_config(2), [](TestEngine& engine, EngineNet& net) {
    const at::Tensor loss = engine(engine_batch(0)).square().mean();
    const double whole = loss.item<double>();
    EXPECT_DOUBLE_EQ(engine.backward(loss, {.retain_graph = true}).item<double>(), whole / 2);
    const at::Tensor half = net->fc->weight.grad().clone();
    EXPECT_DOUBLE_EQ(engine.backward(loss, {.scale_wrt_gas = false}).item<double>(), whole);
    EXPECT_TRUE(at::allclose(net->fc->weight.grad(), 3 * half));
  });
}

/// The call with which a program differentiates.
enum class Way { kEngine, kScaled, kScaledParts };

/// Returns the values after four updates on `world` ranks, each with its own batches.
std::vector<at::Tensor> trained(int world, const std::string& config, Way way) {
  std::vector<at::Tensor> values;
  on_engines(world, config, [&](TestEngine& engine, EngineNet& net) {
    const int rank = engine.accelerator().process_index();
    while (engine.global_steps() < 4) {
      const auto step = static_cast<int>(engine.micro_steps());
      const at::Tensor out = engine(engine_batch(step + 9 * rank));
      const at::Tensor loss = out.square().mean();
      const at::Tensor other = out.mean();
      switch (way) {
        case Way::kEngine:
          engine.backward(loss + other);
          break;
        case Way::kScaled: {
          const at::Tensor scaled = engine.scale(loss + other);
          const double parts = static_cast<double>(engine.gradient_accumulation_steps());
          EXPECT_NEAR(
              scaled.item<double>(),
              (loss + other).item<double>() / parts * engine.loss_scale(),
              1e-5 * engine.loss_scale());
          scaled.backward();
          break;
        }
        case Way::kScaledParts:
          (engine.scale(loss) + engine.scale(other)).backward();
          break;
      }
      engine.step();
      EXPECT_EQ(
          engine.was_step_applied(),
          engine.micro_steps() % engine.gradient_accumulation_steps() == 0);
    }
    auto whole = full_values(engine.accelerator(), net);
    if (rank == 0) {
      values = std::move(whole);
    }
  });
  return values;
}

TEST(Scale, ABackwardOfTheProgramsOwnTrainsAsTheEngines) {
  for (const int world : {1, 2}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const std::string more : {"", kFp16}) {
        const std::string config = backward_config(2, stage, more);
        SCOPED_TRACE(config);
        const auto expected = trained(world, config, Way::kEngine);
        expect_values(trained(world, config, Way::kScaled), expected);
        expect_values(trained(world, config, Way::kScaledParts), expected);
      }
    }
  }
}

TEST(Scale, WaitsWithinNoSyncAsTheEngines) {
  for (const int stage : {0, 1}) {
    on_engines(2, simple_config(1, stage), [](TestEngine& engine, EngineNet& net) {
      {
        const auto held = engine.no_sync();
        engine.scale(engine(engine_batch(0)).mean()).backward();
      }
      EXPECT_THROW(engine.safe_get_full_grad(net->fc->weight), ConfigError);
      engine.scale(engine(engine_batch(1)).mean()).backward();
      EXPECT_TRUE(engine.safe_get_full_grad(net->fc->weight).defined());
      engine.step();
      EXPECT_EQ(engine.global_steps(), 1);
    });
  }
}

TEST(Scale, RefusesUnsupportedUses) {
  on_engines(1, backward_config(1, 0, kFp16), [](TestEngine& engine, EngineNet&) {
    const auto loss = [&] { return engine(engine_batch(0)).square().mean(); };
    EXPECT_THAT(
        [&] { engine.scale(at::ones({})); },
        ThrowsMessage<ConfigError>(HasSubstr("depends on no tensor")));
    EXPECT_THAT(
        [&] { engine.scale(at::ones({2})); },
        ThrowsMessage<ConfigError>(HasSubstr("a loss of one number")));
    EXPECT_THAT(
        [&] { engine.backward(engine.scale(loss())); },
        ThrowsMessage<ConfigError>(HasSubstr("is already scaled")));
    const at::Tensor old = engine.scale(loss());
    engine.backward(loss());
    engine.step();
    EXPECT_THAT(
        [&] { old.backward(); },
        ThrowsMessage<ConfigError>(HasSubstr("scaled before the last update")));
    const at::Tensor last = engine.scale(loss());
    engine.destroy();
    EXPECT_THAT([&] { last.backward(); }, ThrowsMessage<ConfigError>(HasSubstr("was destroyed")));
  });
}

TEST(Scale, ABackwardThatThrewIsReportedAndDoesNotBlockTheNextOne) {
  for (const int stage : {0, 1, 2}) {
    on_engine_ranks(2, simple_config(2, stage), [](InitializeOptions options) {
      EngineNet net;
      auto made = initialize(net, std::move(options));
      auto& engine = std::get<0>(made);
      const at::Tensor out = engine(engine_batch(0));
      out.register_hook([](const at::Tensor&) { throw std::runtime_error("on purpose"); });
      EXPECT_THROW(engine.scale(out.square().mean()).backward(), std::runtime_error);
      EXPECT_THAT([&] { engine.step(); }, ThrowsMessage<ConfigError>(HasSubstr("has thrown")));
      std::get<1>(made).zero_grad();
      for (int micro_step = 0; micro_step < 2; ++micro_step) {
        engine.scale(engine(engine_batch(micro_step)).square().mean()).backward();
        engine.step();
      }
      EXPECT_EQ(engine.global_steps(), 1);
      EXPECT_TRUE(engine.was_step_applied());
    });
  }
}

TEST(UnseenLoss, IsRefusedWhereItsGradientsWouldBeOthers) {
  const auto refused = [](int world, const std::string& config) {
    std::vector<std::string> messages(2);
    on_engine_ranks(world, config, [&](InitializeOptions options) {
      EngineNet net;
      auto made = initialize(net, std::move(options));
      auto& engine = std::get<0>(made);
      const int rank = engine.accelerator().process_index();
      for (int again = 0; again < 2; ++again) {
        std::string& what = messages[static_cast<size_t>(rank)];
        what.clear();
        try {
          engine(engine_batch(0)).square().mean().backward();
        } catch (const ConfigError& error) {
          what = error.what();
        }
      }
      // The engine can be used afterwards.
      std::get<1>(made).zero_grad();
      while (engine.global_steps() < 1) {
        engine.backward(engine(engine_batch(0)).square().mean());
        engine.step();
      }
      EXPECT_TRUE(engine.was_step_applied());
    });
    if (world == 2) {
      EXPECT_EQ(messages[0].empty(), messages[1].empty());
    }
    return messages.front();
  };
  for (const int world : {1, 2}) {
    for (const int stage : {0, 2}) {
      EXPECT_THAT(
          refused(world, backward_config(1, stage, kFp16)),
          HasSubstr("do not carry the loss scale"));
      EXPECT_THAT(
          refused(world, backward_config(3, stage)), HasSubstr("not divided by the 3 micro-steps"));
      EXPECT_THAT(
          refused(world, backward_config(1, stage, R"(, "bf16": {"enabled": true})")),
          HasSubstr("bf16.check_grad_overflow is on"));
    }
  }
}

TEST(UnseenLoss, TrainsIfItsGradientsEqualTheEngines) {
  for (const int world : {1, 2}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const std::string config = simple_config(1, stage);
      const auto expected = trained(world, config, Way::kEngine);
      on_engines(world, config, [&](TestEngine& engine, EngineNet& net) {
        const int rank = engine.accelerator().process_index();
        for (int step = 0; step < 4; ++step) {
          const at::Tensor out = engine(engine_batch(step + 9 * rank));
          (out.square().mean() + out.mean()).backward();
          engine.step();
        }
        expect_values(full_values(engine.accelerator(), net), expected);
      });
    }
  }
}

}  // namespace
}  // namespace lockstep
