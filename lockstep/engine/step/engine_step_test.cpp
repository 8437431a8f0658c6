// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/optim/clip.h"
#include "lockstep/schedule/reduce_on_plateau.h"
#include "lockstep/schedule/schedule.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kRate = 0.5;

std::string sgd_config(int stage, double clip, int micro_steps = 1, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": )" +
         std::to_string(micro_steps) + R"(, "gradient_clipping": )" + std::to_string(clip) +
         R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.5}}, "zero_optimization": {"stage": )" +
         std::to_string(stage) + "}" + more + "}";
}

/// One update of `parameters`, by hand; returns their norm before clipping.
double update_by_hand(
    const EngineNet& net, const std::vector<at::Tensor>& parameters, double clip) {
  const double norm = optim::clip_grad_norm_(parameters, clip).item<double>();
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    parameter.add_(parameter.grad(), -kRate);
  }
  for (const at::Tensor& parameter : net->parameters()) {
    parameter.mutable_grad().reset();
  }
  return norm;
}

TEST(TrainedPart, IsClippedAndScaledByItsOwnGradientsAlone) {
  constexpr double kClip = 0.01;
  for (const auto& [world, stage] : {std::pair(1, 0), std::pair(2, 0), std::pair(1, 2)}) {
    for (const bool fp16 : {false, true}) {
      SCOPED_TRACE(std::to_string(world) + " ranks, stage " + std::to_string(stage));
      const std::string more =
          fp16 ? R"(, "fp16": {"enabled": true, "initial_scale_power": 8})" : "";
      on_engine_ranks(world, sgd_config(stage, kClip, 1, more), [&](InitializeOptions options) {
        EngineNet expected;
        EngineNet net;
        options.model_parameters = net->head->parameters();
        const at::Tensor start = net->head->weight.detach().clone();
        const at::Tensor backbone = net->fc->weight.detach().clone();
        auto made = initialize(net, std::move(options));
        auto& engine = std::get<0>(made);
        for (int step = 0; step < 5; ++step) {
          expected->forward(engine_batch(step)).square().mean().backward();
          const double norm = update_by_hand(expected, expected->head->parameters(), kClip);
          engine.backward(engine(engine_batch(step)).square().mean());
          engine.step();
          EXPECT_TRUE(engine.was_step_applied());
          EXPECT_NEAR(engine.get_global_grad_norm().value(), norm, (fp16 ? 0.02 : 1e-4) * norm);
          EXPECT_FALSE(net->fc->weight.grad().defined());
        }
        EXPECT_TRUE(at::equal(net->fc->weight, backbone));
        EXPECT_TRUE(at::allclose(
            net->head->weight - start,
            expected->head->weight - start,
            fp16 ? 0.05 : 1e-4,
            fp16 ? 5e-4 : 1e-6));
      });
    }
  }
}

TEST(ClientScheduler, AdvancesWithEveryUpdate) {
  on_engine_ranks(2, sgd_config(1, 0, 2), [](InitializeOptions options) {
    EngineNet net;
    options.lr_scheduler =
        schedule::custom([](int64_t step) { return 1.0 / static_cast<double>(step + 1); });
    auto made = initialize(net, std::move(options));
    auto& engine = std::get<0>(made);
    std::vector<double> rates;
    for (int step = 0; step < 4; ++step) {
      engine.backward(engine(engine_batch(step)).mean());
      engine.step();
      rates.push_back(engine.get_lr().front());
    }
    EXPECT_THAT(
        rates, ::testing::ElementsAre(0.5, 0.25, 0.25, ::testing::DoubleNear(0.5 / 3, 1e-12)));
    EXPECT_THAT(
        [&] { engine.step({.metric = 1.0}); },
        ThrowsMessage<ConfigError>(HasSubstr("got a scheduler that depends on steps")));
    EXPECT_EQ(engine.micro_steps(), 4);
  });
}

TEST(ClientScheduler, APlateauUsesTheMetricOfEachUpdate) {
  for (const int stage : {0, 2}) {
    on_engine_ranks(2, sgd_config(stage, 0, 2), [](InitializeOptions options) {
      EngineNet net;
      options.lr_scheduler = schedule::reduce_on_plateau({.factor = 0.5, .patience = 0});
      auto made = initialize(net, std::move(options));
      auto& engine = std::get<0>(made);
      const auto micro_step = [&] { engine.backward(engine(engine_batch(0)).square().mean()); };
      std::vector<double> rates;
      for (const double metric : {1.0, 1.0, 0.5, 0.75}) {
        micro_step();
        engine.step();  // No update, so no metric.
        micro_step();
        const auto before = full_values(engine.accelerator(), net);
        EXPECT_THAT(
            [&] { engine.step(); },
            ThrowsMessage<ConfigError>(HasSubstr("step({.metric = loss})")));
        expect_values(full_values(engine.accelerator(), net), before);
        engine.step({.metric = metric});
        rates.push_back(engine.get_lr().front());
        EXPECT_FALSE(at::equal(full_values(engine.accelerator(), net).front(), before.front()));
      }
      EXPECT_THAT(rates, ::testing::ElementsAre(0.5, 0.25, 0.25, 0.125));
      EXPECT_EQ(engine.global_steps(), 4);
      EXPECT_EQ(engine.micro_steps(), 8);
    });
  }
}

TEST(ClientScheduler, WithoutOneAMetricIsAnError) {
  on_engines(1, sgd_config(0, 0), [](TestEngine& engine, EngineNet&) {
    EXPECT_THAT(
        [&] { engine.step({.metric = 1.0}); },
        ThrowsMessage<ConfigError>(HasSubstr("got no scheduler")));
  });
}

/// One update with the mean over two ranks' gradients, times `part`.
std::vector<at::Tensor> mean_update(double part) {
  EngineNet net;
  for (int rank = 0; rank < 2; ++rank) {
    (net->forward(engine_batch(rank)).square().mean() * (part / 2)).backward();
  }
  update_by_hand(net, net->parameters(), INFINITY);
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : net->parameters()) {
    values.push_back(parameter.detach().clone());
  }
  return values;
}

/// An update whose last backward was to leave the gradients on their ranks.
template <typename Body>
void expect_averaged(int micro_steps, double part, const Body& body) {
  for (const int stage : {0, 1}) {
    SCOPED_TRACE(stage);
    on_engines(2, sgd_config(stage, 0, micro_steps), [&](TestEngine& engine, EngineNet& net) {
      const int rank = engine.accelerator().process_index();
      body(engine, engine(engine_batch(rank)).square().mean());
      engine.step();
      EXPECT_TRUE(engine.was_step_applied());
      EXPECT_EQ(engine.global_steps(), 1);
      expect_values(full_values(engine.accelerator(), net), mean_update(part));
    });
  }
}

TEST(LateBoundary, StepAveragesTheGradientsOfNoSync) {
  expect_averaged(1, 1, [](auto& engine, const at::Tensor& loss) {
    const auto held = engine.no_sync();
    engine.backward(loss);
  });
}

TEST(LateBoundary, FewerMicroStepsAfterABackwardLeaveNothingUnaveraged) {
  expect_averaged(4, 0.25, [](auto& engine, const at::Tensor& loss) {
    engine.backward(loss);
    engine.set_train_batch_size(8);
  });
}

TEST(LateBoundary, ABoundarySetAfterABackwardLeavesNothingUnaveraged) {
  expect_averaged(2, 0.5, [](auto& engine, const at::Tensor& loss) {
    engine.backward(loss);
    engine.set_gradient_accumulation_boundary(true);
  });
}

TEST(Momentum, IsReportedForTorchsOptimizersToo) {
  const std::string config = R"({"train_micro_batch_size_per_gpu": 4})";
  const auto momentum_of = [&](const auto& make) {
    std::vector<double> momenta;
    on_engine_ranks(1, config, [&](InitializeOptions options) {
      EngineNet net;
      options.optimizer = make(net->parameters());
      auto made = initialize(net, std::move(options));
      momenta = std::get<0>(made).get_mom();
    });
    return momenta;
  };
  EXPECT_THAT(
      momentum_of([](const auto& parameters) {
        return std::make_shared<torch::optim::Adam>(
            parameters, torch::optim::AdamOptions(0.01).betas({0.75, 0.5}));
      }),
      ::testing::ElementsAre(0.75));
  EXPECT_THAT(
      momentum_of([](const auto& parameters) {
        return std::make_shared<torch::optim::SGD>(
            parameters, torch::optim::SGDOptions(0.01).momentum(0.5));
      }),
      ::testing::ElementsAre(0.5));
}

TEST(LossScale, IsConfiguredInTheFileOnly) {
  const auto expect_refused = [](const auto& change) {
    on_engine_ranks(
        1, sgd_config(0, 0, 1, R"(, "fp16": {"enabled": true})"), [&](InitializeOptions options) {
          EngineNet net;
          change(options.accelerator);
          EXPECT_THAT(
              [&] { initialize(net, std::move(options)); },
              ThrowsMessage<ConfigError>(HasSubstr("set fp16.loss_scale")));
        });
  };
  expect_refused([](AcceleratorOptions& given) { given.grad_scaler.init_scale = 4; });
  expect_refused(
      [](AcceleratorOptions& given) { given.loss_scale_rule = [](bool) { return 4.0; }; });
}

}  // namespace
}  // namespace lockstep
