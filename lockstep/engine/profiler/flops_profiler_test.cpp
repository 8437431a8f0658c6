// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/profiler/flops_profiler.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Returns the operations of `body`, by name.
template <typename Body>
std::map<std::string, OperationCount> counted(const Body& body) {
  FlopsCounter counter;
  counter.start(nullptr);
  body();
  counter.stop();
  return counter.operations();
}

double all_macs(const std::map<std::string, OperationCount>& operations) {
  double all = 0;
  for (const auto& [unused, each] : operations) {
    all += each.macs;
  }
  return all;
}

TEST(FlopsCounter, ALinearLayerHasAMacForEachWeightAndRow) {
  torch::nn::Linear linear(6, 16);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{4, 6}, {2, 2, 6}}) {
    const auto operations = counted([&] { linear(at::ones(shape)); });
    EXPECT_EQ(all_macs(operations), 4 * 6 * 16) << shape.size();
    double flops = 0;
    for (const auto& [name, each] : operations) {
      flops += name == "addmm" || name == "mm" || name == "bmm" ? each.flops : 0;
    }
    EXPECT_EQ(flops, 2 * 4 * 6 * 16);
  }
}

TEST(FlopsCounter, BatchesAndMatmulAreMatrixProducts) {
  EXPECT_EQ(
      all_macs(counted([] {
        at::matmul(at::ones({5, 3, 4}), at::ones({5, 4, 7}));
      })),
      5 * 3 * 4 * 7);
  EXPECT_EQ(all_macs(counted([] { at::mv(at::ones({3, 4}), at::ones({4})); })), 12);
}

TEST(FlopsCounter, AConvolutionCountsItsKernelAtEveryPosition) {
  // 8 channels to 16 in 2 groups, 3 x 3, stride 2, padding 1: 10 x 10 becomes 5 x 5.
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(8, 16, 3).stride(2).padding(1).groups(2));
  const double macs = 2 * 5 * 5 * 16 * 4 * 9;
  EXPECT_EQ(all_macs(counted([&] { conv(at::ones({2, 8, 10, 10})); })), macs);
  torch::nn::Conv1d line(torch::nn::Conv1dOptions(3, 4, 5).dilation(2));
  EXPECT_EQ(all_macs(counted([&] { line(at::ones({1, 3, 20})); })), (20 - 8) * 4 * 3 * 5);
  torch::nn::ConvTranspose2d back(torch::nn::ConvTranspose2dOptions(4, 6, 2).stride(2));
  EXPECT_EQ(all_macs(counted([&] { back(at::ones({1, 4, 5, 5})); })), 25 * 4 * 6 * 4);
}

TEST(FlopsCounter, AttentionCountsTwoProductsInEveryImplementation) {
  const at::Tensor q = at::ones({2, 3, 5, 8});
  const at::Tensor k = at::ones({2, 3, 7, 8});
  const auto macs = all_macs(
      counted([&] { at::scaled_dot_product_attention(q, k, k, {}, 0.0, false, std::nullopt); }));
  EXPECT_EQ(macs, 2 * 3 * 5 * 7 * (8 + 8));
}

TEST(FlopsCounter, ARecurrentLayerCountsItsWeightsInEveryStep) {
  const torch::NoGradGuard no_grad;
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(6, 10));
  const double macs = all_macs(counted([&] { lstm(at::ones({7, 2, 6})); }));
  EXPECT_EQ(macs, 7 * 2 * (6 * 40 + 10 * 40));
}

TEST(FlopsCounter, ArithmeticCountsElementsOfTheResult) {
  const auto operations = counted([] {
    const at::Tensor x = at::ones({4, 1});
    at::add(x, at::ones({1, 5}));
    at::ones({6}).mul_(2);
    at::relu(at::ones({3}));
    at::softmax(at::ones({2, 8}), 1);
    at::layer_norm(at::ones({2, 8}), {8}, at::ones({8}), at::zeros({8}));
  });
  EXPECT_EQ(operations.at("add").flops, 20);
  EXPECT_EQ(operations.at("mul_").flops, 6);
  EXPECT_EQ(operations.at("relu").flops, 3);
  EXPECT_EQ(operations.at("_softmax").flops, 16);
  EXPECT_EQ(operations.at("native_layer_norm").flops, 80);
  EXPECT_FALSE(operations.contains("ones")) << "computes nothing";
}

TEST(FlopsCounter, CountsItsOwnThreadWhileItIsAskedTo) {
  FlopsCounter counter;
  at::mm(at::ones({2, 2}), at::ones({2, 2}));
  counter.start(nullptr);
  at::mm(at::ones({2, 2}), at::ones({2, 2}));
  std::thread([] { at::mm(at::ones({9, 9}), at::ones({9, 9})); }).join();
  counter.stop();
  at::mm(at::ones({2, 2}), at::ones({2, 2}));
  EXPECT_EQ(counter.operations().at("mm").count, 1);
  counter.start(nullptr);
  at::mm(at::ones({2, 2}), at::ones({2, 2}));
  counter.stop();
  EXPECT_EQ(counter.operations().at("mm").macs, 16);
}

std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string profiled_config(const std::filesystem::path& file, const std::string& more, int stage) {
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0},
    "flops_profiler": {"enabled": true, "profile_step": 2, "output_file": ")" +
         file.string() + "\"" + more + "}}";
}

TEST(FlopsProfiler, WritesOneMicroStepOfTheUpdateThatWasAskedFor) {
  const TestFolder folder;
  for (const int stage : {0, 3}) {
    const auto path = folder.path() / std::to_string(stage);
    on_engines(2, profiled_config(path, "", stage), [&](TestEngine& engine, EngineNet&) {
      const bool is_main = engine.accelerator().is_main_process();
      for (int step = 0; step < 8; ++step) {
        if (is_main) {
          EXPECT_EQ(std::filesystem::exists(path), step > 5) << "micro-step " << step;
        }
        engine.backward(engine(engine_batch(step)).square().mean());
        engine.step();
      }
    });
    const std::string text = contents_of(path);
    EXPECT_THAT(text, HasSubstr("one micro-step of update 3, on rank 0 of 2, 4 samples"));
    EXPECT_THAT(text, HasSubstr("parameters                        146\n"));
    EXPECT_THAT(text, HasSubstr("forward MACs                      512\n"));  // 4 * (6*16 + 16*2)
    EXPECT_THAT(text, HasSubstr("backward FLOPs                    2.18 K (forward x 2)"));
    EXPECT_THAT(text, HasSubstr("\n  addmm "));
    EXPECT_THAT(text, HasSubstr("\n  tanh "));
    EXPECT_THAT(
        text, HasSubstr("depth 1:\n    params        Linear 146\n    MACs          Linear 512"));
    EXPECT_THAT(text, ::testing::ContainsRegex("\n  EngineNet +146 +100.0% +512 +100.0% "));
    EXPECT_THAT(text, ::testing::ContainsRegex("\n    .fc. Linear +112 +76.7% +384 +75.0% "));
  }
}

TEST(FlopsProfiler, ShowsTheRequestedTableAndCountsRecomputationInBackward) {
  const TestFolder folder;
  const auto path = folder.path() / "flops";
  const std::string more = R"(, "detailed": false, "module_depth": 0, "recompute_fwd_factor": 1)";
  on_engines(1, profiled_config(path, more, 0), [&](TestEngine& engine, EngineNet&) {
    for (int step = 0; step < 6; ++step) {
      engine.backward(engine(engine_batch(step)).square().mean());
      engine.step();
    }
  });
  const std::string text = contents_of(path);
  EXPECT_THAT(text, Not(HasSubstr("\n  addmm ")));
  EXPECT_THAT(text, Not(HasSubstr("(fc) Linear")));
  EXPECT_THAT(text, HasSubstr("depth 0:\n    params        EngineNet 146\n"));
  EXPECT_THAT(text, Not(HasSubstr("depth 1")));
  EXPECT_THAT(text, HasSubstr("(forward x 3)"));
}

TEST(FlopsProfiler, AnOutputFileThatCannotBeWrittenIsAnError) {
  on_engines(1, profiled_config("/nowhere/flops", "", 0), [&](TestEngine& engine, EngineNet&) {
    const auto train = [&engine = engine] {
      for (int step = 0; step < 6; ++step) {
        engine.backward(engine(engine_batch(step)).square().mean());
        engine.step();
      }
    };
    EXPECT_THAT(train, ::testing::ThrowsMessage<Error>(HasSubstr("/nowhere/flops")));
  });
}

}  // namespace
}  // namespace lockstep
