// SPDX-License-Identifier: Apache-2.0
// ds_config.json's activation_checkpointing applies to the checkpoints of an engine's model.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

/// Three layers, each computed again in backward.
struct RecomputedImpl : torch::nn::Module {
  RecomputedImpl() {
    for (int i = 0; i < 3; ++i) {
      layers.emplace_back(register_module("layer" + std::to_string(i), torch::nn::Linear(6, 6)));
    }
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          at::sin(at::arange(parameter.numel(), at::kFloat) + 1).reshape(parameter.sizes()) / 2);
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const torch::nn::Linear& layer : layers) {
      x = at::tanh(activation_checkpoint(layer, x));
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Recomputed);

std::string activation_config(const std::string& section, int stage = 0) {
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "activation_checkpointing": {)" +
         section +
         R"(}, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(stage) + "}}";
}

constexpr const char* kAll = R"("partition_activations": true, "cpu_checkpointing": true,
    "contiguous_memory_optimization": true, "number_checkpoints": 3,
    "synchronize_checkpoint_boundary": true, "profile": true)";

std::vector<double> losses_of(const std::string& section, int world, int stage) {
  std::vector<double> losses;
  on_engine_ranks(world, activation_config(section, stage), [&](InitializeOptions options) {
    Recomputed net;
    auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
    for (int step = 0; step < 6; ++step) {
      const auto loss = engine(engine_batch(step)).square().mean();
      engine.backward(loss);
      engine.step();
      if (engine.accelerator().is_main_process()) {
        losses.push_back(loss.template item<double>());
      }
    }
  });
  return losses;
}

/// Hands frozen matrices of unequal sizes to its checkpoints.
struct FrozenInputsImpl : torch::nn::Module {
  FrozenInputsImpl() {
    first = register_module("first", torch::nn::Linear(6, 6));
    narrow = register_parameter("narrow", at::eye(6), /*requires_grad=*/false);
    wide = register_parameter("wide", at::ones({6, 2048}) / 8, /*requires_grad=*/false);
    const at::NoGradGuard no_grad;
    first->weight.copy_(at::eye(6));
    first->bias.zero_();
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = first(x);
    for (const at::Tensor& matrix : {narrow, wide}) {
      h = activation_checkpoint(
          [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
            return {at::tanh(at::matmul(in[0], in[1]))};
          },
          {h, matrix},
          {})[0];
    }
    return h;
  }
  torch::nn::Linear first{nullptr};
  at::Tensor narrow, wide;
};
TORCH_MODULE(FrozenInputs);

TEST(EngineCheckpointing, ShardedParametersNeedNoContiguousMemory) {
  std::vector<std::vector<double>> losses(2);
  for (const bool kept : {false, true}) {
    const std::string section =
        kept ? R"("contiguous_memory_optimization": true, "number_checkpoints": 2)" : "";
    on_engine_ranks(2, activation_config(section, 3), [&](InitializeOptions options) {
      FrozenInputs net;
      auto made = initialize(net, std::move(options));
      auto& engine = std::get<0>(made);
      for (int step = 0; step < 4; ++step) {
        const at::Tensor loss = engine(engine_batch(step)).square().mean();
        engine.backward(loss);
        engine.step();
        if (engine.accelerator().is_main_process()) {
          losses[kept ? 1 : 0].push_back(loss.item<double>());
        }
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(EngineCheckpointing, TrainsBitExactlyAsWithoutItInEveryStage) {
  for (const int stage : {0, 2, 3}) {
    const auto expected = losses_of("", 2, stage);
    ASSERT_EQ(expected.size(), 6U);
    EXPECT_NE(expected[0], expected[5]);
    EXPECT_EQ(losses_of(kAll, 2, stage), expected);
    EXPECT_EQ(losses_of(R"("cpu_checkpointing": true)", 2, stage), expected);
  }
}

TEST(EngineCheckpointing, FewerCheckpointsThanTheModelHasIsAnError) {
  on_engine_ranks(
      1,
      activation_config(R"("contiguous_memory_optimization": true, "number_checkpoints": 2)"),
      [](InitializeOptions options) {
        Recomputed net;
        auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
        EXPECT_THAT(
            [&engine = engine] { engine(engine_batch(0).requires_grad_() * 1); },
            ThrowsMessage<ConfigError>(
                HasSubstr("number_checkpoints is too small; got checkpoint 3")));
      });
}

TEST(EngineCheckpointing, AppliesToItsEngineOnly) {
  const std::string one =
      activation_config(R"("contiguous_memory_optimization": true, "number_checkpoints": 1)");
  on_engine_ranks(1, one, [](const InitializeOptions& options) {
    Recomputed net;
    auto [engine, optimizer, none, scheduler] = initialize(net, options);
    Recomputed other;
    InitializeOptions plain = options;
    plain.config_json = activation_config("");
    auto [second, optimizer2, none2, scheduler2] = initialize(other, std::move(plain));
    const at::Tensor x = engine_batch(0).requires_grad_() * 1;
    EXPECT_THROW(engine(x), ConfigError);
    second(x);
    net->forward(x);

    torch::nn::Linear layer = net->layers[0];
    const at::Tensor held = engine.checkpoint(layer, x);
    EXPECT_THROW(engine.checkpoint(layer, x), ConfigError);
    engine.scale(held.sum()).backward();
    EXPECT_TRUE(at::equal(engine.checkpoint(layer, x), layer->forward(x)));
  });
}

TEST(EngineCheckpointing, ProfileReportsTheTimesOfCheckpointsAfterEachUpdate) {
  std::string logged;
  const auto log_of = [&](const std::string& section) {
    logged.clear();
    set_log_sink([&](const std::string& line) { logged += line + "\n"; });
    losses_of(section, 1, 0);
    set_log_sink({});
    return logged;
  };
  EXPECT_THAT(
      log_of(R"("profile": true)"),
      ContainsRegex("time \\(ms\\) \\| checkpoint forward: [0-9.]+ \\| checkpoint backward: "
                    "[0-9.]+ \\| checkpoints: 6"));
  EXPECT_THAT(log_of(R"("cpu_checkpointing": true)"), Not(HasSubstr("checkpoint forward")));
}

}  // namespace
}  // namespace lockstep
