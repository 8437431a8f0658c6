// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

/// A model with a layer that forward uses only on request.
struct SpareNetImpl : torch::nn::Module {
  SpareNetImpl() {
    net = register_module("net", EngineNet());
    spare = register_module("spare", torch::nn::Linear(6, 2));
  }
  at::Tensor forward(const at::Tensor& x, bool use_spare = false) {
    return use_spare ? at::add(net(x), spare(x)) : net(x);
  }
  EngineNet net{nullptr};
  torch::nn::Linear spare{nullptr};
};
TORCH_MODULE(SpareNet);

TEST(UnusedParameters, AreNamedOnAllRanksWhereTheyAreNotIgnored) {
  for (const int world : {1, 2}) {
    for (const int stage : {1, 2}) {
      SCOPED_TRACE(stage);
      on_engine_ranks(
          world,
          zero_config(stage, R"(, "ignore_unused_parameters": false)", 2),
          [](InitializeOptions options) {
            SpareNet net;
            auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
            const auto update = [&](bool use_spare) {
              for (int micro_step = 0; micro_step < 2; ++micro_step) {
                const bool first = micro_step == 0;
                engine.backward(engine(engine_batch(micro_step), use_spare && first).mean());
                engine.step();
              }
            };
            update(true);  // Once in an update is enough.
            EXPECT_EQ(engine.global_steps(), 1);
            EXPECT_THAT(
                [&] { update(false); },
                ThrowsMessage<ConfigError>(AllOf(
                    HasSubstr("spare.weight"),
                    HasSubstr("spare.bias"),
                    HasSubstr("zero_optimization.ignore_unused_parameters is false"),
                    Not(HasSubstr("fc.weight")))));
            EXPECT_EQ(engine.global_steps(), 1);
          });
    }
  }
}

TEST(UnusedParameters, OneThatSomeRankUsesIsUsed) {
  on_engine_ranks(
      2, zero_config(2, R"(, "ignore_unused_parameters": false)"), [](InitializeOptions options) {
        SpareNet net;
        auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
        const bool here = engine.accelerator().process_index() == 1;
        engine.backward(engine(engine_batch(0), here).mean());
        engine.step();
        EXPECT_EQ(engine.global_steps(), 1);
      });
}

TEST(UnusedParameters, AreAllowedUnlessTheFileForbidsThem) {
  for (int stage = 0; stage <= 3; ++stage) {
    on_engine_ranks(2, zero_config(stage, ""), [](InitializeOptions options) {
      SpareNet net;
      auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
      engine.backward(engine(engine_batch(0)).mean());
      engine.step();
      EXPECT_TRUE(engine.was_step_applied());
    });
  }
}

TEST(CoalescedReduction, SendsOnceInsteadOfInEachMicroStepAndTrainsTheSame) {
  for (const int world : {1, 2}) {
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(stage);
      std::vector<at::Tensor> expected;
      on_engines(world, simple_config(3, stage), [&](TestEngine& engine, EngineNet& net) {
        for (int step = 0; step < 6; ++step) {
          engine.backward(engine(engine_batch(step)).square().mean());
          engine.step();
        }
        auto values = full_values(engine.accelerator(), net);
        if (engine.accelerator().is_main_process()) {
          expected = std::move(values);
        }
      });
      on_engine_ranks(world, simple_config(1, stage), [&](InitializeOptions options) {
        EngineNet net;
        auto made = initialize(net, std::move(options));
        auto& engine = std::get<0>(made);
        Optimizer& optimizer = std::get<1>(made);
        const auto any_average = [&] {
          const auto shard_slices = optimizer.parameters();
          return std::any_of(
              shard_slices.begin(), shard_slices.end(), [](const at::Tensor& shard_slice) {
                return shard_slice.grad().defined();
              });
        };
        for (int update = 0; update < 2; ++update) {
          engine.coalesce_grad_reduction([&] {
            for (int part = 0; part < 3; ++part) {
              const auto loss = engine(engine_batch(3 * update + part)).square().mean();
              engine.backward(at::div(loss, 3.0));
              EXPECT_EQ(optimizer.is_sharded() && any_average(), false);
            }
          });
          EXPECT_TRUE(any_average());
          engine.step();
        }
        EXPECT_EQ(engine.global_steps(), 2);
        const auto values = full_values(engine.accelerator(), net);
        for (size_t i = 0; i < values.size(); ++i) {
          EXPECT_TRUE(at::allclose(values[i], expected[i], 1e-6, 1e-7));
        }
      });
    }
  }
}

TEST(CoalescedReduction, IsForStages1To3AndEndsBeforeStep) {
  on_engines(2, simple_config(1, 2), [](TestEngine& engine, EngineNet&) {
    engine.coalesce_grad_reduction([&] {
      engine.backward(engine(engine_batch(0)).mean());
      EXPECT_THAT([&] { engine.step(); }, ThrowsMessage<ConfigError>(HasSubstr("step after it")));
      EXPECT_THROW(engine.coalesce_grad_reduction([] {}), ConfigError);
    });
    engine.step();
    EXPECT_THROW(
        engine.coalesce_grad_reduction([] { throw std::runtime_error("out"); }),
        std::runtime_error);
    engine.backward(engine(engine_batch(0)).mean());
    engine.step();
    EXPECT_EQ(engine.global_steps(), 2);
  });
  on_engines(1, simple_config(1, 0), [](TestEngine& engine, EngineNet&) {
    EXPECT_THAT(
        [&] { engine.coalesce_grad_reduction([] {}); },
        ThrowsMessage<ConfigError>(HasSubstr("works in stages 1 to 3; got stage 0")));
  });
}

TEST(OffloadStates, AreOnTheHostAlreadyOnACpuAndAreReloadedBeforeUse) {
  const TestFolder folder;
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    on_engines(2, simple_config(1, stage), [&](TestEngine& engine, EngineNet&) {
      const auto backward = [&] { engine.backward(engine(engine_batch(0)).mean()); };
      backward();
      engine.step();
      engine.offload_states({.include = {{OffloadStateType::kOptimStates}}});
      backward();  // It does not need the optimizer states.
      EXPECT_THAT(
          [&] { engine.step(); },
          ThrowsMessage<ConfigError>(HasSubstr("call reload_states() first")));
      engine.offload_states();
      EXPECT_THROW(backward(), ConfigError);
      EXPECT_THROW(engine.save_checkpoint(folder.path()), ConfigError);
      engine.reload_states();
      engine.reload_states();
      backward();
      engine.step();
      EXPECT_EQ(engine.global_steps(), 2);
      EXPECT_THAT(
          [&] { engine.offload_states({.device = OffloadDevice::kNvme}); },
          ThrowsMessage<ConfigError>(HasSubstr("moves states to host memory only")));
    });
  }
  on_engines(
      1,
      zero_config(3, R"(, "cpu_offload": true, "cpu_offload_param": true)"),
      [](TestEngine& engine, EngineNet&) {
        EXPECT_THAT(
            [&] { engine.offload_states(); },
            ThrowsMessage<ConfigError>(HasSubstr("cannot be combined with offload_param")));
      });
}

TEST(DestroyedEngine, ThrowsOnUseAndAllowsANewOne) {
  for (const int stage : {0, 2}) {
    on_engine_ranks(2, simple_config(1, stage), [](const InitializeOptions& options) {
      EngineNet net;
      auto made = initialize(net, options);
      auto& engine = std::get<0>(made);
      auto other = engine;
      engine.backward(engine(engine_batch(0)).mean());
      engine.step();
      engine.destroy();
      engine.destroy();
      for (const std::function<void()>& use : std::vector<std::function<void()>>{
               [&] { other(engine_batch(0)); },
               [&] { other.backward(net(engine_batch(0)).mean()); },
               [&] { other.step(); },
               [&] { other.train_batch_size(); },
               [&] { other.scale(net(engine_batch(0)).mean()); },
               [&] { other.is_gradient_accumulation_boundary(); },
               [&] { other.set_gradient_accumulation_boundary(true); },
               [&] { const auto held = other.no_sync(); },
               [&] { other.coalesce_grad_reduction([] {}); },
               [&] { other.gradient_accumulation_steps(); },
               [&] { other.set_train_micro_batch_size(2); },
               [&] { other.zero_optimization_stage(); },
               [&] { other.global_steps(); },
               [&] { other.global_samples(); },
               [&] { other.skipped_steps(); },
               [&] { other.micro_steps(); },
               [&] { other.was_step_applied(); },
               [&] { other.get_global_grad_norm(); },
               [&] { other.get_lr(); },
               [&] { other.get_mom(); },
               [&] { other.loss_scale(); },
               [&] { other.loader_options(); },
               [&] { other.config(); },
               [&] { other.log_summary(); },
               [&] { other.train(); },
               [&] { other.eval(); },
               [&] { other.accelerator(); }}) {
        EXPECT_THAT(use, ThrowsMessage<ConfigError>(HasSubstr("is destroyed")));
      }
      auto again = initialize(net, options);
      std::get<0>(again).backward(std::get<0>(again)(engine_batch(0)).mean());
      std::get<0>(again).step();
      EXPECT_EQ(std::get<0>(again).global_steps(), 1);
    });
  }
}

TEST(Watching, TheFileMayRequestAllValuesAndMemoryReports) {
  std::string said;
  set_log_sink([&](const std::string& line) { said += line + "\n"; });
  on_engines(
      1,
      R"({"train_batch_size": 4, "dump_state": true, "memory_breakdown": true,
          "optimizer": {"type": "SGD", "params": {"lr": 0.25}}})",
      [](TestEngine& engine, EngineNet&) {
        engine.backward(engine(engine_batch(0)).mean());
        engine.step();
      });
  set_log_sink({});
  EXPECT_THAT(said, HasSubstr("optimizer.params.lr = 0.25 ("));
  EXPECT_THAT(said, HasSubstr("gradient_clipping = 1 (default"));
  for (const char* when : {"forward", "backward", "step"}) {
    EXPECT_THAT(said, HasSubstr(std::string("memory before ") + when + ": process "));
    EXPECT_THAT(said, HasSubstr(std::string("memory after ") + when + ": process "));
  }
}

}  // namespace
}  // namespace lockstep
