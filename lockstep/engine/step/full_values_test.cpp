// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/training_state/full_values.h"

#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/optim/rules/adafactor.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep {
namespace {

using std::string_literals::operator""s;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// One number, trained.
struct ScaleNetImpl : torch::nn::Module {
  ScaleNetImpl() { scale = register_parameter("scale", at::full({}, 0.5)); }
  at::Tensor forward(const at::Tensor& x) { return x * scale; }
  at::Tensor scale;
};
TORCH_MODULE(ScaleNet);

/// Values of an engine on rank 0 after two updates and a backward, and after edits.
struct Seen {
  at::Tensor parameter, gradient, exp_avg, step, edited_parameter, edited_state, after_step;
};

Seen seen_in_stage(int stage, int world) {
  Seen seen;
  on_engine_ranks(world, simple_config(1, stage), [&](InitializeOptions options) {
    EngineNet net;
    const bool first = options.connected->group.rank() == 0;
    auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
    const at::Tensor weight = net->fc->weight;
    EXPECT_FALSE(engine.safe_get_full_grad(weight).defined());
    for (int step = 0; step < 2; ++step) {
      engine.backward(engine(engine_batch(step)).square().mean());
      engine.step();
    }
    engine.backward(engine(engine_batch(2)).square().mean());
    Seen here;
    here.parameter = engine.safe_get_full_fp32_param(weight);
    here.gradient = engine.safe_get_full_grad(weight);
    here.exp_avg = engine.safe_get_full_optimizer_state(weight, "exp_avg");
    here.step = engine.safe_get_full_optimizer_state(weight, "step");
    engine.safe_set_full_fp32_param(weight, at::full_like(here.parameter, 2));
    engine.safe_set_full_optimizer_state(weight, at::full_like(here.exp_avg, 3), "exp_avg");
    engine.safe_set_full_grad(weight, at::full_like(here.gradient, 0.5));
    here.edited_parameter = engine.safe_get_full_fp32_param(weight);
    here.edited_state = engine.safe_get_full_optimizer_state(weight, "exp_avg");
    engine.step();
    here.after_step = engine.safe_get_full_fp32_param(weight);
    if (first) {
      seen = std::move(here);
    }
  });
  return seen;
}

TEST(FullValues, EqualThoseOfOneProcessInEveryStageAlsoAfterAnEdit) {
  const Seen alone = seen_in_stage(0, 1);
  EXPECT_EQ(alone.step.item<double>(), 2);
  EXPECT_TRUE(at::equal(alone.edited_parameter, at::full({16, 6}, 2.0)));
  EXPECT_FALSE(at::equal(alone.after_step, alone.edited_parameter));
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world : {2, 3}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + " of " + std::to_string(world));
      const Seen seen = seen_in_stage(stage, world);
      EXPECT_TRUE(at::allclose(seen.parameter, alone.parameter));
      EXPECT_TRUE(at::allclose(seen.gradient, alone.gradient));
      EXPECT_TRUE(at::allclose(seen.exp_avg, alone.exp_avg));
      EXPECT_EQ(seen.step.item<double>(), 2);
      EXPECT_TRUE(at::equal(seen.edited_parameter, alone.edited_parameter));
      EXPECT_TRUE(at::equal(seen.edited_state, at::full({16, 6}, 3.0)));
      // The step moves some weights from 2 to nearly 0, so a relative error says nothing.
      EXPECT_TRUE(at::allclose(seen.after_step, alone.after_step, 1e-5, 1e-6));
    }
  }
}

/// Two weights that lie in one bucket.
struct TwinNetImpl : torch::nn::Module {
  TwinNetImpl() {
    first = register_parameter("first", at::full({64}, 0.25));
    second = register_parameter("second", at::linspace(0, 1, 64));
  }
  at::Tensor forward(const at::Tensor& x) { return x * (first + second); }
  at::Tensor first, second;
};
TORCH_MODULE(TwinNet);

TEST(FullValues, AParameterSetToAnotherOfItsBucketKeepsTheseValues) {
  for (const int stage : {0, 1, 2, 3}) {
    on_engine_ranks(2, simple_config(1, stage), [&](InitializeOptions options) {
      TwinNet net;
      auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
      const at::Tensor expected = at::linspace(0, 1, 64);
      engine.safe_set_full_fp32_param(net->first, net->second);
      EXPECT_TRUE(at::equal(net->first, expected)) << "operations see it, in stage " << stage;
      {
        const torch::NoGradGuard no_grad;
        net->second.fill_(3);  // So the bucket is written back as it is.
      }
      EXPECT_TRUE(at::equal(engine.safe_get_full_fp32_param(net->first), expected)) << stage;
      EXPECT_TRUE(at::equal(engine.safe_get_full_fp32_param(net->second), at::full({64}, 3.0)));
    });
  }
}

/// The gradient and the values of the first layer's weight after an update, with `extra` in the
/// file.
std::pair<at::Tensor, at::Tensor> seen_with(const std::string& extra, int world) {
  std::pair<at::Tensor, at::Tensor> seen;
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 4,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, )" +
      extra + "}";
  on_engine_ranks(world, config, [&](InitializeOptions options) {
    EngineNet net;
    const bool first = options.connected->group.rank() == 0;
    auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
    engine.backward(engine(engine_batch(0)).square().mean());
    const at::Tensor gradient = engine.safe_get_full_grad(net->fc->weight);
    engine.safe_set_full_grad(net->fc->weight, gradient);
    engine.step();
    const at::Tensor values = engine.safe_get_full_fp32_param(net->fc->weight);
    EXPECT_GT(
        engine.safe_get_full_optimizer_state(net->fc->weight, "exp_avg_sq").max().item<float>(), 0);
    if (first) {
      seen = {gradient, values};
    }
  });
  return seen;
}

TEST(FullValues, ExistWithOffloadingWithFullParametersAndWithoutALossScale) {
  const TestFolder folder;
  const std::string nvme =
      R"({"device": "nvme", "nvme_path": ")" + folder.path().native() + R"("})";
  const auto [gradient, values] = seen_with(R"("zero_optimization": {"stage": 0})", 1);
  for (const std::string& extra :
       {std::string(R"("zero_optimization": {"stage": 3})"),  // All small enough to stay whole.
        R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})"s,
        fmt::format(
            R"("zero_optimization": {{"stage": 3, "stage3_param_persistence_threshold": 0,
               "offload_optimizer": {0}, "offload_param": {0}}})",
            nvme),
        R"("zero_optimization": {"stage": 0}, "fp16": {"enabled": true, "loss_scale": 1024})"s,
        R"("zero_optimization": {"stage": 2}, "fp16": {"enabled": true, "loss_scale": 1024})"s}) {
    SCOPED_TRACE(extra);
    const auto [their_gradient, their_values] = seen_with(extra, 2);
    const double allowed = extra.find("fp16") == std::string::npos ? 1e-6 : 2e-3;
    EXPECT_TRUE(at::allclose(their_gradient, gradient, allowed, allowed));
    EXPECT_TRUE(at::allclose(their_values, values, allowed, allowed));
  }
}

TEST(FullValues, RowsAreFullInEveryStage) {
  at::Tensor alone;  // (16, 1)
  for (const int stage : {0, 1, 2, 3}) {
    on_engines(
        stage == 0 ? 1 : 3,
        R"({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adafactor"},
            "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
            std::to_string(stage) + "}}",
        [&](TestEngine& engine, EngineNet& net) {
          engine.backward(engine(engine_batch(0)).square().mean());
          engine.step();
          const at::Tensor rows = engine.safe_get_full_optimizer_state(net->fc->weight, "row_var");
          if (stage == 0) {
            alone = rows;
          }
          EXPECT_TRUE(at::allclose(rows, alone)) << stage;
          EXPECT_TRUE(engine.safe_get_full_optimizer_state(net->fc->bias, "variance").defined());
        });
  }
}

TEST(FullValues, StateThatIsSmallerThanItsParameterIsFullToo) {
  on_engine_ranks(2, R"({"train_micro_batch_size_per_gpu": 4})", [](InitializeOptions options) {
    EngineNet net;
    const auto inner = std::make_shared<optim::Adafactor>(net->parameters());
    options.optimizer = inner;
    auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
    engine.backward(engine(engine_batch(0)).square().mean());
    engine.step();
    const auto state = inner->state_of(net->fc->weight);
    const at::Tensor rows = engine.safe_get_full_optimizer_state(net->fc->weight, "row_var");
    EXPECT_EQ(rows.sizes().vec(), (std::vector<int64_t>{16, 1}));
    EXPECT_TRUE(at::equal(rows, state.fields[0]));
  });
}

TEST(FullValues, TheStepOfAZeroDimensionalParameterCannotBeSet) {
  on_engine_ranks(1, R"({"train_micro_batch_size_per_gpu": 4})", [](InitializeOptions options) {
    ScaleNet net;
    options.optimizer = std::make_shared<optim::AdamW>(net->parameters());
    auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
    engine.backward(engine(engine_batch(0)).square().mean());
    engine.step();
    auto& ours = engine;
    EXPECT_THAT(
        [&] { ours.safe_set_full_optimizer_state(net->scale, at::full({}, 7), "step"); },
        ThrowsMessage<ConfigError>(HasSubstr("can be set, not counts")));
    engine.safe_set_full_optimizer_state(net->scale, at::full({}, 7.0), "exp_avg");
    EXPECT_EQ(engine.safe_get_full_optimizer_state(net->scale, "exp_avg").item<double>(), 7);
  });
}

TEST(FullValues, AGradientGivenIn16BitsSurvivesTheLossScale) {
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
          "fp16": {"enabled": true, "loss_scale": 65536}})";
  on_engines(2, config, [](TestEngine& engine, EngineNet& net) {
    engine.backward(engine(engine_batch(0)).square().mean());
    const at::Tensor twos = at::full({16, 6}, 2, at::kHalf);
    engine.safe_set_full_grad(net->fc->weight, twos);
    EXPECT_TRUE(at::equal(engine.safe_get_full_grad(net->fc->weight), twos.to(at::kFloat)));
  });
}

TEST(FullValues, GradientsThatNoStageHasAveragedYetAreRefused) {
  for (const int stage : {0, 1, 2, 3}) {
    on_engines(2, simple_config(2, stage), [&](TestEngine& engine, EngineNet& net) {
      auto& ours = engine;
      const auto gradient = [&] { return ours.safe_get_full_grad(net->fc->weight); };
      engine.backward(engine(engine_batch(0)).square().mean());
      if (stage < 2) {
        EXPECT_THAT(
            gradient, ThrowsMessage<ConfigError>(HasSubstr("after that micro-step's backward")));
      } else {
        EXPECT_TRUE(gradient().defined());
      }
      engine.step();
      engine.backward(engine(engine_batch(1)).square().mean());
      EXPECT_TRUE(gradient().defined());
      engine.step();
      EXPECT_FALSE(gradient().defined());
    });
  }
}

TEST(FullValues, RefuseAMissingValueOnAllRanks) {
  on_engines(2, simple_config(1, 2), [](TestEngine& engine, EngineNet& net) {
    auto& ours = engine;
    EXPECT_THAT(
        [&] { ours.safe_get_full_fp32_param(at::ones({3})); },
        ThrowsMessage<ConfigError>(HasSubstr("got a tensor that the optimizer does not train")));
    EXPECT_THAT(
        [&] { ours.safe_get_full_optimizer_state(net->fc->weight, "exp_avg"); },
        ThrowsMessage<ConfigError>(HasSubstr("state exists after the first step")));
    EXPECT_THAT(
        [&] {
          ours.safe_set_full_grad(net->fc->weight, at::ones({16, 6}));
        },
        ThrowsMessage<ConfigError>(HasSubstr("call it between backward and step")));
    EXPECT_THAT(
        [&] {
          ours.safe_set_full_fp32_param(net->fc->weight, at::ones({6, 16}));
        },
        ThrowsMessage<ConfigError>(HasSubstr("got [6, 16], expected [16, 6]")));
  });
}

}  // namespace
}  // namespace lockstep
