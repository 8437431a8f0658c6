// SPDX-License-Identifier: Apache-2.0
// Keys of ds_config.json take effect, and programs may pass objects instead.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/setup/config_document.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/schedule/decay_schedules.h"
#include "lockstep/zero/coordinator/param_coordinator.h"
#include "lockstep/zero/sharding.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(EngineFile, TensorboardHasDeepspeedsCurves) {
  const TestFolder folder;
  on_engines(
      1,
      R"({"train_batch_size": 4, "optimizer": {"type": "Adam", "params": {"lr": 0.25}},
          "fp16": {"enabled": true, "initial_scale_power": 4},
          "tensorboard": {"enabled": true, "job_name": "job", "output_path": ")" +
          folder.path().string() + "\"}}",
      [](TestEngine& engine, EngineNet&) { train(engine, 0, 2); });
  std::string events;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path() / "job")) {
    if (entry.is_regular_file()) {
      std::ifstream file(entry.path(), std::ios::binary);
      events.append(std::istreambuf_iterator<char>(file), {});
    }
  }
  EXPECT_THAT(
      events,
      AllOf(
          HasSubstr("Train/Samples/train_loss"),
          HasSubstr("Train/Samples/lr"),
          HasSubstr("Train/Samples/loss_scale")));
}

std::string logged_by(const std::string& comms) {
  std::string said;
  set_log_sink([&](const std::string& line) { said += line + "\n"; });
  on_engines(
      2,
      R"({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam"},
          "comms_logger": {"enabled": true)" +
          comms + "}}",
      [](TestEngine& engine, EngineNet&) { train(engine, 0, 1); });
  set_log_sink({});
  return said;
}

TEST(EngineFile, AVerboseCommsLoggerTellsEachOperation) {
  EXPECT_THAT(logged_by(R"(, "verbose": true)"), HasSubstr("comm op: all_reduce | time (ms): "));
  EXPECT_THAT(logged_by(""), Not(HasSubstr("comm op: ")));
}

TEST(EngineFile, TheProgramMaySetTheMicroBatch) {
  on_engines(2, simple_config(3), [](TestEngine& engine, EngineNet&) {
    EXPECT_EQ(engine.train_batch_size(), 24);
    engine.set_train_micro_batch_size(10);
    EXPECT_EQ(engine.train_micro_batch_size_per_gpu(), 10);
    EXPECT_EQ(engine.train_batch_size(), 60);
    EXPECT_EQ(engine.loader_options().batch_size, 10);
    train(engine, 0, 3);
    EXPECT_EQ(engine.global_samples(), 60);
    EXPECT_THAT(
        [&] { engine.set_train_micro_batch_size(0); },
        ThrowsMessage<ConfigError>(HasSubstr("got 0, expected at least 1")));
  });
}

struct DeepNetImpl : torch::nn::Module {
  DeepNetImpl() {
    for (int i = 0; i < 6; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i),
          torch::nn::Linear(torch::nn::LinearOptions(64, 64).bias(false))));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) {
      x = at::tanh(layer(x));
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(DeepNet);

TEST(EngineFile, PrefetchIsOnUnlessTheFileSays0) {
  const auto prefetches = [](const std::string& key) {
    int64_t count = -1;
    on_engine_ranks(
        2,
        R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam"},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0,
            "reduce_bucket_size": 4096)" +
            key + "}}",
        [&](InitializeOptions options) {
          DeepNet net;
          auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
          for (int step = 0; step < 3; ++step) {
            engine.backward(engine(at::ones({2, 64})).sum());
            engine.step();
          }
          if (engine.accelerator().is_main_process()) {
            count = optimizer.sharding()->coordinator()->prefetches();
          }
        });
    return count;
  };
  EXPECT_GT(prefetches(""), 0);
  EXPECT_EQ(prefetches(R"(, "stage3_prefetch_bucket_size": 0)"), 0);
}

TEST(EngineFile, ParametersStayFullUpToTheFilesLimit) {
  const auto expect = [](const std::string& key, bool comes_and_goes) {
    on_engines(
        2,
        R"({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam"},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 1000)" +
            key + "}}",
        [&](TestEngine& engine, EngineNet& net) {
          EXPECT_EQ(comm::is_sharded_param(net->fc->weight), comes_and_goes) << key;
          train(engine, 0, 1);
        });
  };
  expect("", false);
  expect(R"(, "stage3_model_persistence_threshold": 0)", true);
}

TEST(EngineFile, TheLargestNumberIsABucketOfEverything) {
  for (const int stage : {2, 3}) {
    on_engines(
        2,
        R"({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam"},
            "zero_optimization": {"reduce_bucket_size": 9223372036854775807, "stage": )" +
            std::to_string(stage) + "}}",
        [](TestEngine& engine, EngineNet&) {
          train(engine, 0, 2);
          EXPECT_EQ(engine.global_steps(), 2);
        });
  }
}

constexpr const char* kBare = R"({"train_micro_batch_size_per_gpu": 4})";

TEST(EngineFile, AProgramMayGiveFunctionsThatMakeOptimizerAndSchedule) {
  on_engine_ranks(2, kBare, [](InitializeOptions options) {
    EngineNet net;
    net->fc->weight.set_requires_grad(false);
    size_t trained = 0;
    options.make_optimizer = [&](const std::vector<at::Tensor>& parameters) {
      trained = parameters.size();
      return std::make_shared<optim::SGD>(parameters, optim::SGDOptions{.lr = 0.5});
    };
    options.make_lr_scheduler = [&](torch::optim::Optimizer& optimizer) -> AnySchedule {
      EXPECT_NE(dynamic_cast<optim::SGD*>(&optimizer), nullptr);
      return schedule::step_decay({.step_size = 1, .gamma = 0.5});
    };
    auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
    EXPECT_EQ(trained, 3U);
    train(engine, 0, 2);
    EXPECT_THAT(engine.get_lr(), ElementsAre(0.125));
  });
  on_engine_ranks(1, kBare, [](InitializeOptions options) {
    EngineNet net;
    options.make_optimizer = [](const std::vector<at::Tensor>&) { return nullptr; };
    EXPECT_THAT(
        [&] { initialize(net, options); }, ThrowsMessage<ConfigError>(HasSubstr("no optimizer")));
    options.optimizer = std::make_shared<optim::SGD>(net->parameters(), optim::SGDOptions{});
    EXPECT_THAT(
        [&] { initialize(net, options); },
        ThrowsMessage<ConfigError>(HasSubstr("got both `optimizer` and `make_optimizer`")));
  });
}

TEST(EngineFile, AConfigurationMayComeInBase64) {
  // {"train_micro_batch_size_per_gpu": 4}
  const std::string encoded = "eyJ0cmFpbl9taWNyb19iYXRjaF9zaXplX3Blcl9ncHUiOiA0fQ==";
  EXPECT_EQ(plain_config_text(encoded), kBare);
  EXPECT_EQ(plain_config_text(" " + encoded + "\n"), kBare);
  EXPECT_EQ(plain_config_text(kBare), kBare);
  EXPECT_EQ(plain_config_text("Zm9v"), "Zm9v") << "no configuration";
  EXPECT_EQ(plain_config_text(""), "");
  on_engines(1, encoded, [](TestEngine& engine, EngineNet&) {
    EXPECT_EQ(engine.train_micro_batch_size_per_gpu(), 4);
  });
}

}  // namespace
}  // namespace lockstep
