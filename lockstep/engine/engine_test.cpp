// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/engine.h"

#include <cmath>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/ds_config/parameters/parameter_table.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/rules/adafactor.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/lamb.h"
#include "lockstep/optim/rules/rprop.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// The configuration and the loop of the document that Lockstep comes from.
constexpr const char* kSeed = R"({
  "train_batch_size": 8,
  "gradient_accumulation_steps": 1,
  "optimizer": {"type": "Adam", "params": {"lr": 0.00015}},
  "fp16": {"enabled": true},
  "zero_optimization": true
})";

TEST(Engine, TrainsByTheSeedsConfigurationOnACpu) {
  for (const int world : {1, 2, 4}) {
    on_engines(world, kSeed, [](TestEngine& engine, EngineNet&) {
      EXPECT_EQ(engine.train_batch_size(), 8);
      EXPECT_EQ(engine.zero_optimization_stage(), 1);
      EXPECT_EQ(engine.loss_scale(), 65536);
      double first = 0;
      double last = 0;
      for (int step = 0; step < 30; ++step) {
        const auto loss = engine(engine_batch(0)).square().mean();
        engine.backward(loss);
        engine.step();
        last = loss.item<double>();
        first = step == 0 ? last : first;
      }
      EXPECT_LT(last, first);
      EXPECT_EQ(engine.global_steps(), 30);
      EXPECT_EQ(engine.global_samples(), 240);
    });
  }
}

/// The same by hand: what the file says, in torch's words.
std::vector<double> adamw_losses_by_hand(int steps, int micro_steps, double clip) {
  EngineNet net;
  optim::AdamW optimizer(net->parameters(), {.lr = 0.01, .weight_decay = 0.1});
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    double mean = 0;
    for (int micro_step = 0; micro_step < micro_steps; ++micro_step) {
      const auto loss =
          net->forward(engine_batch(step * micro_steps + micro_step)).square().mean() / micro_steps;
      loss.backward();
      mean += loss.item<double>();
    }
    optim::clip_grad_norm_(net->parameters(), clip);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(mean);
  }
  return losses;
}

TEST(Engine, AFileAsksForAnUpdateThatCanBeCaptured) {
  const auto config = [](const std::string& type) {
    return R"({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": ")" + type +
           R"(", "params": {"lr": 0.01, "capturable": true}}})";
  };
  on_engine_ranks(1, config("AdamW"), [](InitializeOptions options) {
    EngineNet net;
    auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
    EXPECT_TRUE(dynamic_cast<optim::AdamW&>(optimizer.inner()).options().capturable);
  });
  on_engine_ranks(1, config("Adafactor"), [](InitializeOptions options) {
    EngineNet net;
    EXPECT_THAT(
        [&] { initialize(net, std::move(options)); },
        ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("cannot be captured")));
  });
}

/// A row of the table that nobody makes would be found by its first user.
TEST(Engine, EveryOptimizerOfTheTableTrains) {
  for (const ds_config::TypeSpec& type : ds_config::optimizer_types()) {
    const bool wants_shapes = type.name.starts_with("Mu") && type.name != "Muon";
    if (type.refused || wants_shapes) {
      continue;
    }
    const std::string config =
        R"({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": ")" + type.name +
        R"("}, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": 3}})";
    on_engines(2, config, [&](TestEngine& engine, EngineNet&) {
      std::vector<double> losses;
      for (int step = 0; step < 5; ++step) {
        const auto loss = engine(engine_batch(0)).square().mean();
        losses.push_back(engine.backward(loss).item<double>());
        engine.step();
      }
      EXPECT_LT(losses.back(), losses.front()) << type.name;
    });
  }
}

TEST(Engine, AFileGivesOptimizersTheOptionsThatDeepspeedAdds) {
  const auto config = [](const std::string& type, const std::string& params) {
    return R"({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": ")" + type +
           R"(", "params": {)" + params + "}}}";
  };
  const auto expect = [](const std::string& text, const auto& check) {
    on_engine_ranks(1, text, [&](InitializeOptions options) {
      EngineNet net;
      auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
      check(optimizer.inner());
    });
  };
  expect(config("Adam", R"("bias_correction": false)"), [](auto& inner) {
    EXPECT_FALSE(dynamic_cast<optim::AdamW&>(inner).options().bias_correction);
  });
  expect(config("Lamb", R"("eps_inside_sqrt": true)"), [](auto& inner) {
    EXPECT_TRUE(dynamic_cast<optim::LAMB&>(inner).options().eps_inside_sqrt);
  });
  expect(config("Adafactor", R"("eps": [null, 0.5])"), [](auto& inner) {
    const auto& eps = dynamic_cast<optim::Adafactor&>(inner).options().eps;
    EXPECT_FALSE(eps.first);
    EXPECT_EQ(eps.second, 0.5);
  });
  expect(config("Adafactor", R"("eps": [1e-6, 0.5])"), [](auto& inner) {
    EXPECT_EQ(dynamic_cast<optim::Adafactor&>(inner).options().eps.first, 1e-6);
  });
  expect(config("Rprop", R"("etas": [0.25, 2], "step_sizes": [0.1, 3])"), [](auto& inner) {
    const optim::RpropOptions& given = dynamic_cast<optim::Rprop&>(inner).options();
    EXPECT_EQ(given.etas, std::pair(0.25, 2.0));
    EXPECT_EQ(given.step_sizes, std::pair(0.1, 3.0));
  });
}

TEST(Engine, EveryStageTrainsAsAPlainLoop) {
  const auto expected = adamw_losses_by_hand(6, 2, 0.5);
  for (const int world : {1, 2, 3}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const std::string config = R"({
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
        "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
                                 std::to_string(stage) + "}}";
      on_engines(world, config, [&](TestEngine& engine, EngineNet&) {
        for (size_t step = 0; step < expected.size(); ++step) {
          double mean = 0;
          for (int micro_step = 0; micro_step < 2; ++micro_step) {
            EXPECT_EQ(engine.is_gradient_accumulation_boundary(), micro_step == 1);
            const auto loss =
                engine(engine_batch(static_cast<int>(step) * 2 + micro_step)).square().mean();
            mean += engine.backward(loss).item<double>();
            engine.step();
            EXPECT_EQ(engine.was_step_applied(), micro_step == 1);
          }
          EXPECT_NEAR(mean, expected[step], 1e-5) << "stage " << stage << ", world " << world;
        }
        EXPECT_EQ(engine.micro_steps(), 12);
        EXPECT_EQ(engine.global_steps(), 6);
        EXPECT_TRUE(engine.get_global_grad_norm().has_value());
      });
    }
  }
}

TEST(Engine, StepsTheFilesScheduleWithEveryUpdateThatIsApplied) {
  on_engine_ranks(
      1,
      R"({"train_batch_size": 4, "gradient_accumulation_steps": 2,
          "optimizer": {"type": "SGD", "params": {"lr": 0.5, "momentum": 0.9}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4,
            "warmup_max_lr": 0.4, "warmup_type": "linear"}}})",
      [](InitializeOptions options) {
        EngineNet net;
        auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
        std::vector<double> rates;
        for (int step = 0; step < 10; ++step) {
          engine.backward(engine(engine_batch(step)).square().mean());
          engine.step();
          rates.push_back(engine.get_lr().front());
        }
        EXPECT_EQ(scheduler.steps(), 5);
        EXPECT_EQ(rates[0], 0) << "a micro-step is no update";
        EXPECT_NEAR(rates[9], 0.4, 1e-9);
        EXPECT_EQ(engine.get_mom(), std::vector<double>{0.9});
      });
}

TEST(Engine, AnOverflowSkipsTheUpdateAndTheScheduleAndCountsTheStep) {
  for (const int stage : {0, 2}) {
    on_engine_ranks(
        2,
        R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
            "fp16": {"enabled": true, "initial_scale_power": 8, "hysteresis": 2},
            "zero_optimization": {"stage": )" +
            std::to_string(stage) + "}}",
        [&](InitializeOptions options) {
          EngineNet net;
          auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
          for (int step = 0; step < 3; ++step) {
            const bool overflow = step != 1;
            engine.backward(engine(engine_batch(step)).mean() * (overflow ? INFINITY : 1));
            engine.step();
            EXPECT_EQ(engine.was_step_applied(), !overflow);
          }
          EXPECT_EQ(engine.skipped_steps(), 2);
          EXPECT_EQ(engine.global_steps(), 3);
          EXPECT_EQ(optimizer.steps(), 1);
          // DeepSpeed has two scalers: with ZeRO the first overflow only counts.
          EXPECT_EQ(engine.loss_scale(), stage == 0 ? 64 : 128);
        });
  }
}

TEST(Engine, TheSumOfGradientsIsTheMeanTimesTheRanks) {
  std::vector<at::Tensor> weights;
  for (const std::string op : {"mean", "sum"}) {
    on_engine_ranks(
        2,
        R"({"train_batch_size": 2, "gradient_clipping": 0, "gradient_allreduce_op": ")" + op +
            R"(", "optimizer": {"type": "SGD", "params": {"lr": 0.5}}})",
        [&](InitializeOptions options) {
          EngineNet net;
          const at::Tensor before = net->fc->weight.detach().clone();
          auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
          engine.backward(engine(engine_batch(0)).square().mean());
          engine.step();
          if (engine.accelerator().is_main_process()) {
            weights.push_back(net->fc->weight.detach() - before);
          }
        });
  }
  EXPECT_TRUE(at::allclose(weights[1], 2 * weights[0], 1e-5, 1e-6));
}

TEST(Engine, TheProgramMaySayWhereAnUpdateEnds) {
  on_engines(1, simple_config(4), [](TestEngine& engine, EngineNet&) {
    for (const bool boundary : {false, true, true}) {
      engine.set_gradient_accumulation_boundary(boundary);
      engine.backward(engine(engine_batch(0)).mean());
      engine.step();
    }
    EXPECT_EQ(engine.global_steps(), 2);
  });
}

TEST(Engine, NoSyncIsForStages0And1AndEndsBeforeStep) {
  on_engines(2, simple_config(1), [](TestEngine& engine, EngineNet&) {
    {
      auto held = engine.no_sync();
      EXPECT_THROW(engine.no_sync(), ConfigError);
      engine.backward(engine(engine_batch(0)).mean());
      EXPECT_THROW(engine.step(), ConfigError);
    }
    engine.backward(engine(engine_batch(1)).mean());
    engine.step();
  });
  on_engines(2, simple_config(1, 2), [](TestEngine& engine, EngineNet&) {
    EXPECT_THROW(engine.no_sync(), ConfigError);
  });
}

TEST(Engine, TheBatchSizeChangesByMicroSteps) {
  on_engines(2, simple_config(1), [](TestEngine& engine, EngineNet&) {
    EXPECT_EQ(engine.train_batch_size(), 8);
    engine.set_train_batch_size(24);
    EXPECT_EQ(engine.gradient_accumulation_steps(), 3);
    EXPECT_THAT(
        [&engine = engine] { engine.set_train_batch_size(20); },
        ThrowsMessage<ConfigError>(HasSubstr("multiple of 8 samples")));
  });
}

TEST(Engine, FeedsADatasetInMicroBatches) {
  on_engine_ranks(2, simple_config(1), [](InitializeOptions options) {
    EngineNet net;
    auto [engine, optimizer, loader, scheduler] = initialize(
        net, std::move(options), data::TensorDataset(at::randn({32, 6}), at::arange(32)));
    int batches = 0;
    for (auto& batch : loader) {
      EXPECT_EQ(batch.data.size(0), 4);
      engine.backward(engine(batch.data).square().mean());
      engine.step();
      ++batches;
    }
    EXPECT_EQ(batches, 4);
  });
}

TEST(Engine, WritesTheMonitorsCurvesOverSamples) {
  const TestFolder folder;
  on_engines(
      2,
      R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.25}},
          "csv_monitor": {"enabled": true, "job_name": "job", "output_path": ")" +
          folder.path().string() + "\"}}",
      [](TestEngine& engine, EngineNet&) {
        for (int step = 0; step < 2; ++step) {
          engine.backward(engine(engine_batch(step)).mean());
          engine.step();
        }
      });
  std::ifstream file(folder.path() / "job" / "Train_Samples_lr.csv");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, "step,lr\n8,0.25\n16,0.25\n");
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "job" / "Train_Samples_train_loss.csv"));
}

TEST(Engine, NamesMissingAndDuplicateArguments) {
  const auto error_of = [](const std::string& config, const auto& change) {
    std::string message = "no error";
    on_engine_ranks(1, config, [&](InitializeOptions options) {
      try {
        change(options);
        EngineNet net;
        auto made = initialize(net, std::move(options));
        auto& engine = std::get<0>(made);
        engine.backward(engine(engine_batch(0)).mean());
      } catch (const ConfigError& error) {
        message = error.what();
      }
    });
    return message;
  };
  const auto as_is = [](InitializeOptions&) {};
  EXPECT_THAT(
      error_of(R"({"train_batch_size": 4})", as_is), HasSubstr("the engine has no optimizer"));
  EXPECT_THAT(
      error_of(simple_config(1), [](InitializeOptions& o) { o.config = "ds_config.json"; }),
      HasSubstr("give only one"));
  EXPECT_THAT(
      error_of(simple_config(1), [](InitializeOptions& o) { o.config_json.clear(); }),
      HasSubstr("needs a configuration"));
  EXPECT_THAT(
      error_of(
          simple_config(1),
          [](InitializeOptions& o) { o.accelerator.mixed_precision = Precision::kBF16; }),
      HasSubstr("set fp16.enabled or bf16.enabled in the file"));
  EXPECT_THAT(
      error_of(
          R"({"train_batch_size": 4, "scheduler": {"type": "WarmupLR", "params": {}}})", as_is),
      HasSubstr("a scheduler without an optimizer"));
  EXPECT_THAT(
      error_of(R"({"train_batch_size": 4, "gradient_clipp1ng": 3})", as_is),
      HasSubstr("did you mean 'gradient_clipping'"));
}

}  // namespace
}  // namespace lockstep
