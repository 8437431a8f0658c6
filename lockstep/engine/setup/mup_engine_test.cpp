// SPDX-License-Identifier: Apache-2.0
// MuAdam, MuAdamW and MuSGD of a ds_config.json.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/prepare/prepare.h"
#include "lockstep/base/error.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/mup.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct WideImpl : torch::nn::Module {
  explicit WideImpl(int64_t width) {
    in = register_module("in", torch::nn::Linear(6, width));
    hidden = register_module("hidden", torch::nn::Linear(width, width));
    out = register_module("out", optim::MuReadout(width, 2));
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          at::sin(at::arange(parameter.numel(), at::kFloat) + 1).reshape(parameter.sizes()) / 4);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return out(at::tanh(hidden(at::tanh(in(x))))); }
  torch::nn::Linear in{nullptr}, hidden{nullptr};
  optim::MuReadout out{nullptr};
};
TORCH_MODULE(Wide);

/// Four times as wide as its base.
std::pair<Wide, optim::InfShapes> wide() {
  Wide net(16);
  return {net, optim::set_base_shapes(*net, *Wide(4), *Wide(8))};
}

std::string mup_config(const std::string& type, int stage = 0, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0, "optimizer":
      {"type": ")" +
         type + R"(", "params": {"lr": 0.02, "weight_decay": 0.1)" + more +
         R"(}}, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(stage) + "}}";
}

template <typename Optimizer, typename Options>
std::vector<double> losses_by_hand(const Options& options, optim::MupScaling scaling) {
  auto [net, shapes] = wide();
  Optimizer optimizer(
      optim::with_options(optim::mup_groups(parameters_of(*net), shapes, scaling), options));
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    const at::Tensor loss = net->forward(engine_batch(step)).square().mean();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(EngineMup, EveryStageTrainsAsAPlainLoopWithScaledRates) {
  const std::vector<std::pair<std::string, std::vector<double>>> cases = {
      {"MuAdam",
       losses_by_hand<optim::Adam>(
           optim::AdamOptions{.lr = 0.02, .weight_decay = 0.1}, optim::MupScaling::kAdam)},
      {"MuAdamW",
       losses_by_hand<optim::AdamW>(
           optim::AdamWOptions{.lr = 0.02, .weight_decay = 0.1}, optim::MupScaling::kAdam)},
      {"MuSGD",
       losses_by_hand<optim::SGD>(
           optim::SGDOptions{.lr = 0.02, .weight_decay = 0.1}, optim::MupScaling::kSgd)}};
  for (const auto& [type, expected] : cases) {
    for (const int stage : {0, 2, 3}) {
      on_engine_ranks(
          2, mup_config(type, stage), [&, &losses = expected](InitializeOptions options) {
            auto [net, shapes] = wide();
            options.mup_shapes = shapes;
            auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
            for (size_t step = 0; step < losses.size(); ++step) {
              const auto loss = engine(engine_batch(static_cast<int>(step))).square().mean();
              engine.backward(loss);
              engine.step();
              EXPECT_NEAR(loss.template item<double>(), losses[step], 1e-6) << stage;
            }
          });
    }
  }
}

TEST(EngineMup, TheRatesScaleWithTheWidthAndAFlagKeepsWeightDecay) {
  const auto rates_of = [](const std::string& type) {
    std::vector<double> rates;
    on_engine_ranks(1, mup_config(type), [&](InitializeOptions options) {
      auto [net, shapes] = wide();
      options.mup_shapes = shapes;
      rates = std::get<0>(initialize(net, std::move(options))).get_lr();
    });
    return rates;
  };
  EXPECT_THAT(rates_of("MuAdamW"), ElementsAre(0.005, 0.02));
  EXPECT_THAT(rates_of("MuSGD"), ElementsAre(0.02, 0.08, 0.02));
  on_engine_ranks(
      1, mup_config("MuAdamW", 0, R"(, "decoupled_wd": true)"), [](InitializeOptions options) {
        auto [net, shapes] = wide();
        options.mup_shapes = shapes;
        auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
        EXPECT_EQ(dynamic_cast<optim::AdamW&>(optimizer.inner()).options().weight_decay, 0.1);
      });
}

TEST(EngineMup, WithoutShapesAnErrorSaysWhatToPass) {
  on_engine_ranks(1, mup_config("MuAdam"), [](InitializeOptions options) {
    EXPECT_THAT(
        [&] { initialize(wide().first, options); },
        ThrowsMessage<ConfigError>(HasSubstr("call optim::set_base_shapes(*net, *base, *delta)")));
  });
}

}  // namespace
}  // namespace lockstep
