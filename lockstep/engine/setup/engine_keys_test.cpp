// SPDX-License-Identifier: Apache-2.0
// Keys of ds_config.json change the training loop.
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/engine/engine.h"
#include "lockstep/engine/setup/accelerator_options.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

std::string half_rate_sgd_config(const std::string& more, int stage = 0) {
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0,
      "optimizer": {"type": "SGD", "params": {"lr": 0.5}}, "zero_optimization": {"stage": )" +
         std::to_string(stage) + "}, " + more + "}";
}

TEST(ManagedAccumulation, WithoutItEveryStepIsAnUpdate) {
  for (const int stage : {0, 1, 2}) {
    const std::string config = half_rate_sgd_config(
        R"("gradient_accumulation_steps": 2, "managed_gradient_accumulation": false)", stage);
    on_engine_ranks(2, config, [](InitializeOptions options) {
      EngineNet alone;
      for (int rank = 0; rank < 2; ++rank) {
        for (int micro_step = 0; micro_step < 2; ++micro_step) {
          (alone->forward(engine_batch(micro_step + 5 * rank)).square().mean() / 4).backward();
        }
      }
      std::vector<at::Tensor> expected;
      for (const at::Tensor& parameter : alone->parameters()) {
        expected.push_back(parameter.detach() - 0.5 * parameter.grad());
      }
      EngineNet net;
      auto made = initialize(net, std::move(options));
      auto& engine = std::get<0>(made);
      const int rank = engine.accelerator().process_index();
      for (int micro_step = 0; micro_step < 2; ++micro_step) {
        EXPECT_TRUE(engine.is_gradient_accumulation_boundary());
        engine.backward(engine(engine_batch(micro_step + 5 * rank)).square().mean());
      }
      engine.step();
      EXPECT_TRUE(engine.was_step_applied());
      EXPECT_EQ(engine.global_steps(), 1);
      expect_values(full_values(engine.accelerator(), net), expected);
      engine.backward(engine(engine_batch(0)).square().mean());
      engine.step();
      EXPECT_TRUE(engine.was_step_applied());
      EXPECT_EQ(engine.global_steps(), 2);
    });
  }
}

TEST(FixedLossScale, StaysAndSkipsStepsThatOverflow) {
  for (const int stage : {0, 2}) {
    const std::string config =
        half_rate_sgd_config(R"("fp16": {"enabled": true, "loss_scale": 128})", stage);
    on_engines(2, config, [](TestEngine& engine, EngineNet& net) {
      for (int step = 0; step < 4; ++step) {
        const bool overflow = step == 1 || step == 2;
        EXPECT_EQ(engine.loss_scale(), 128);
        const auto before = full_values(engine.accelerator(), net);
        const at::Tensor loss = engine(engine_batch(step)).mean() * (overflow ? INFINITY : 1);
        engine.backward(loss);
        if (step == 0) {
          // Gradients carry the scale until step(), and the engine's own do not.
          const at::Tensor gradient = engine.safe_get_full_grad(net->head->bias);
          EXPECT_TRUE(at::allclose(gradient, at::full({2}, 0.5), 1e-2)) << gradient;
        }
        engine.step();
        EXPECT_EQ(engine.was_step_applied(), !overflow);
        const auto after = full_values(engine.accelerator(), net);
        EXPECT_EQ(at::equal(before.back(), after.back()), overflow);
      }
      EXPECT_EQ(engine.skipped_steps(), 2);
      EXPECT_EQ(engine.global_steps(), 4);
      EXPECT_EQ(engine.loss_scale(), 128);
    });
  }
}

TEST(Bf16Overflow, IsSkippedUnlessChecksAreOff) {
  for (const int stage : {0, 1, 2}) {
    for (const bool check : {true, false}) {
      const std::string config = half_rate_sgd_config(
          std::string(R"("bf16": {"enabled": true, "check_grad_overflow": )") +
              (check ? "true" : "false") + "}",
          stage);
      on_engines(2, config, [&](TestEngine& engine, EngineNet& net) {
        const auto before = full_values(engine.accelerator(), net);
        const bool here = engine.accelerator().process_index() == 1;
        engine.backward(engine(engine_batch(0)).mean() * (here ? INFINITY : 1));
        engine.step();
        EXPECT_EQ(engine.was_step_applied(), !check);
        EXPECT_EQ(engine.skipped_steps(), check ? 1 : 0);
        EXPECT_EQ(engine.loss_scale(), 1);
        const auto after = full_values(engine.accelerator(), net);
        if (!check) {
          EXPECT_FALSE(at::isfinite(after.back()).all().item<bool>());
          return;
        }
        expect_values(after, before);
        engine.backward(engine(engine_batch(0)).mean());
        engine.step();
        EXPECT_TRUE(engine.was_step_applied());
      });
    }
  }
}

TEST(Bf16Overflow, OfAGradientThatTheProgramSetIsSkippedToo) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int size : {1, 2}) {
      const std::string config = half_rate_sgd_config(R"("bf16": {"enabled": true})", stage);
      on_engines(size, config, [&](TestEngine& engine, EngineNet& net) {
        const auto before = full_values(engine.accelerator(), net);
        engine.backward(engine(engine_batch(0)).mean());
        const at::Tensor gradient = engine.safe_get_full_grad(net->fc->weight);
        engine.safe_set_full_grad(net->fc->weight, at::full_like(gradient, INFINITY));
        engine.step();
        EXPECT_FALSE(engine.was_step_applied()) << "stage " << stage;
        expect_values(full_values(engine.accelerator(), net), before);
      });
    }
  }
}

/// Notes what its layer computes in.
struct NotingNetImpl : torch::nn::Module {
  NotingNetImpl() { fc = register_module("fc", torch::nn::Linear(6, 2)); }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = fc(x);
    computed_in = y.scalar_type();
    return y;
  }
  torch::nn::Linear fc{nullptr};
  at::ScalarType computed_in = at::kDouble;
};
TORCH_MODULE(NotingNet);

TEST(TorchAutocast, ComputesOperationsInItsDtypeAndKeepsParametersInFp32) {
  const auto expect = [](const std::string& section, at::ScalarType dtype, double scale) {
    for (const int stage : {0, 2}) {
      const std::string config =
          half_rate_sgd_config("\"torch_autocast\": {" + section + "}", stage);
      on_engine_ranks(2, config, [&](InitializeOptions options) {
        NotingNet net;
        auto made = initialize(net, std::move(options));
        auto& engine = std::get<0>(made);
        EXPECT_EQ(engine.loss_scale(), scale);
        std::vector<double> losses;
        for (int step = 0; step < 3; ++step) {
          const at::Tensor out = engine(engine_batch(0));
          EXPECT_EQ(net->computed_in, dtype);
          EXPECT_EQ(out.scalar_type(), at::kFloat);
          losses.push_back(engine.backward(out.square().mean() * 0.1).item<double>());
          engine.step();
          EXPECT_TRUE(engine.was_step_applied());
        }
        EXPECT_LT(losses.back(), losses.front());
        EXPECT_EQ(net->fc->weight.scalar_type(), at::kFloat);
      });
    }
  };
  expect(R"("enabled": true, "dtype": "bfloat16")", at::kBFloat16, 1);
  expect(R"("enabled": true, "dtype": "fp16")", at::kHalf, 65536);
  expect(R"("enabled": false, "dtype": "bfloat16")", at::kFloat, 1);
}

TEST(TorchAutocast, HasTheLossScaleOfTorchInEveryStage) {
  for (const int stage : {0, 1, 2, 3}) {
    const std::string config =
        half_rate_sgd_config(R"("torch_autocast": {"enabled": true, "dtype": "fp16"})", stage);
    const auto scale = make_dynamic_loss_scale(ds_config::resolve_ds_config(
        config::parse_document("ds.json", config, config::Format::kCommentedJson), 1));
    EXPECT_EQ(scale->update(/*overflowed=*/true), 32768) << "DeepSpeed's fp16 waits for a second";
    for (int update = 1; update < 2000; ++update) {
      ASSERT_EQ(scale->update(/*overflowed=*/false), 32768);
    }
    EXPECT_EQ(scale->update(/*overflowed=*/false), 65536);
    for (int overflow = 0; overflow < 20; ++overflow) {
      scale->update(/*overflowed=*/true);
    }
    EXPECT_EQ(scale->scale(), 65536 / std::exp2(20)) << "has no minimum";
  }
}

}  // namespace
}  // namespace lockstep
