// SPDX-License-Identifier: Apache-2.0
// An engine whose ranks divide layers or sequences trains as one of a single process.
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/functional/loss.h>

#include "lockstep/accelerator/test_weights.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/context_parallel/sequence_scope.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/tensor_parallel/test_gpt.h"

namespace lockstep::divided_engine {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const TensorPlan kPlan = {{"fc", TensorStyle::kColwise}, {"head", TensorStyle::kRowwise}};
constexpr const char* kSpecs = R"({"layer_specs": [
    {"patterns": ["fc\\.weight$"]}, {"patterns": [".*head.*"], "partition_type": "row"}]})";

struct Job {
  int tp = 1;
  int dp = 1;
  int stage = 0;
  std::string keys = "";  ///< More of the file, before a comma.
  TensorPlan plan = kPlan;
  at::ScalarType dtype = at::kDouble;
};

std::string config_of(const Job& job) {
  return "{" + job.keys + R"("train_micro_batch_size_per_gpu": )" + std::to_string(4 / job.dp) +
         R"(, "gradient_accumulation_steps": 2, "gradient_clipping": 0.1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {
    "stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(job.stage) + R"(}, "tensor_parallel": {"autotp_size": )" +
         std::to_string(job.tp) + "}}";
}

void on_job(
    const Job& job,
    const std::string& config,
    const std::function<void(TestEngine&, EngineNet&)>& body) {
  on_engine_ranks(job.tp * job.dp, config, [&](InitializeOptions options) {
    EngineNet net;
    net->to(job.dtype);
    options.accelerator.tensor_parallel = {
        .plan = job.plan, .example = [&] { return net->forward(engine_batch(0).to(job.dtype)); }};
    auto made = initialize(net, std::move(options));
    body(std::get<0>(made), net);
  });
}

/// Runs micro-steps, each on the rank's share of a batch. Returns the losses, and the norms of
/// updates.
std::vector<double> train_shares(TestEngine& engine, int from, int to, at::ScalarType dtype) {
  const Group& data = engine.accelerator().mesh().data;
  std::vector<double> values;
  for (int step = from; step < to; ++step) {
    const at::Tensor share =
        engine_batch(step).to(dtype).chunk(data.size())[static_cast<size_t>(data.rank())];
    const at::Tensor loss = engine(share).square().mean();
    engine.backward(loss);
    engine.step();
    values.push_back(engine.accelerator().reduce(loss.detach(), ReduceOp::kAvg).item<double>());
    if (engine.get_global_grad_norm()) {
      values.push_back(*engine.get_global_grad_norm());
    }
  }
  return values;
}

struct Trained {
  std::vector<double> values;
  Weights weights;
  int64_t samples = 0;
};

Trained trained(const Job& job, const std::string& config, int to = 6) {
  Trained result;
  std::mutex mutex;
  on_job(job, config, [&](TestEngine& engine, EngineNet& net) {
    std::vector<double> values = train_shares(engine, 0, to, job.dtype);
    Weights weights = weights_of(engine.accelerator(), *net);
    const std::lock_guard lock(mutex);
    result = {std::move(values), std::move(weights), engine.global_samples()};
  });
  return result;
}

Trained trained(const Job& job) {
  return trained(job, config_of(job));
}

void expect_equal(const Trained& got, const Trained& expected, double most = 1e-12) {
  ASSERT_EQ(got.values.size(), expected.values.size());
  for (size_t i = 0; i < got.values.size(); ++i) {
    EXPECT_NEAR(got.values[i], expected.values[i], most);
  }
  EXPECT_LT(largest_difference(got.weights, expected.weights), most);
  EXPECT_EQ(got.samples, expected.samples);
}

TEST(TensorParallelEngine, TrainsAsOneProcessInEachStage) {
  const Trained one = trained({});
  for (const int dp : {1, 2}) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE("dp " + std::to_string(dp) + ", stage " + std::to_string(stage));
      expect_equal(trained({.tp = 2, .dp = dp, .stage = stage}), one);
    }
  }
}

TEST(TensorParallelEngine, ComputesInSixteenBitsAsOneProcess) {
  for (const std::string keys :
       {R"("bf16": {"enabled": true}, )", R"("fp16": {"enabled": true, "loss_scale": 8}, )"}) {
    const Job one{.stage = 1, .keys = keys, .dtype = at::kFloat};
    const Job two{.tp = 2, .dp = 2, .stage = 1, .keys = keys, .dtype = at::kFloat};
    expect_equal(trained(two), trained(one), 2e-2);
  }
}

TEST(TensorParallelEngine, TakesThePlanOfTheFile) {
  const auto config = [](const std::string& tensor) {
    return R"({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW",
      "params": {"lr": 0.01}}, "tensor_parallel": )" +
           tensor + "}";
  };
  const Trained one = trained({.dp = 2}, config("{}"));
  const std::string specs =
      R"({"autotp_size": 2, "partition_config": )" + std::string(kSpecs) + "}";
  expect_equal(trained({.tp = 2, .dp = 2, .plan = {}}, config(specs)), one);
  const auto expect_error =
      [&](const std::string& tensor, const TensorPlan& plan, const char* text) {
        EXPECT_THAT(
            [&] { trained({.tp = 2, .dp = 2, .plan = plan}, config(tensor)); },
            ThrowsMessage<ConfigError>(HasSubstr(text)));
      };
  expect_error(specs, kPlan, "give only one");
  expect_error(R"({"autotp_size": 2})", {}, "nothing says which");
  expect_error(
      R"({"autotp_size": 2, "preset_model": "llama"})", {}, "divide no weight of the model");
  expect_error(
      R"({"autotp_size": 2, "partition_config": {"strict_mode": true, "layer_specs": [{"patterns": ["fc"]}]}})",
      {},
      "matches head.weight, and strict_mode is true");
  expect_error(
      R"({"autotp_size": 2, "partition_config": {"layer_specs": [{"patterns": ["fc"], "shape": [[8, 4], -1]}]}})",
      {},
      "expected sizes whose sum is that");
}

TEST(TensorParallelEngine, AMeshOfAnotherSizeThanTheFilesIsAnError) {
  on_engine_ranks(4, config_of({.tp = 2}), [&](InitializeOptions options) {
    options.accelerator.mesh = MeshShape{.tp = 4};
    EngineNet net;
    EXPECT_THAT(
        [&] { initialize(net, std::move(options)); },
        ThrowsMessage<ConfigError>(
            HasSubstr("the mesh is tp=4, and tensor_parallel.autotp_size is 2")));
  });
  EXPECT_THAT(
      [] { on_job({.tp = 3}, config_of({.tp = 2}), [](TestEngine&, EngineNet&) {}); },
      ThrowsMessage<ConfigError>(HasSubstr("needs a multiple of 2 ranks")));
}

TEST(TensorParallelEngine, ACheckpointLoadsOnAnotherMesh) {
  const Trained one = trained({}, config_of({}), 6);
  const TestFolder folder;
  on_job(
      {.tp = 2, .stage = 1}, config_of({.tp = 2, .stage = 1}), [&](TestEngine& engine, EngineNet&) {
        train_shares(engine, 0, 4, at::kDouble);
        engine.save_checkpoint(folder.path());
      });
  for (const Job& job : {Job{.dp = 2, .stage = 2}, Job{.tp = 2, .dp = 2, .stage = 3}, Job{}}) {
    on_job(job, config_of(job), [&](TestEngine& engine, EngineNet& net) {
      engine.load_checkpoint(folder.path());
      train_shares(engine, 4, 6, at::kDouble);
      EXPECT_EQ(engine.global_samples(), one.samples);
      EXPECT_LT(largest_difference(weights_of(engine.accelerator(), *net), one.weights), 1e-12);
    });
  }
}

/// Trains test_gpt on texts that `ranks` ranks divide.
Weights train_on_parts(int ranks, const std::string& keys) {
  Weights weights;
  std::mutex mutex;
  const std::string config =
      R"({"train_batch_size": 4, "gradient_accumulation_steps": 2, "optimizer":
    {"type": "SGD", "params": {"lr": 0.1}})" +
      keys + "}";
  on_engine_ranks(ranks, config, [&](InitializeOptions options) {
    test_gpt::Gpt net;
    net->to(at::kDouble);
    for (const at::Tensor& parameter : net->parameters()) {  // Ranks share torch's generator.
      const at::NoGradGuard no_grad;
      parameter.copy_(at::sin(at::arange(parameter.numel())).reshape(parameter.sizes()) / 4);
    }
    auto made = initialize(net, std::move(options));
    auto& engine = std::get<0>(made);
    for (int step = 0; step < 4; ++step) {
      at::Tensor tokens = at::arange(16).reshape({2, 8}).mul(step + 3).remainder(test_gpt::kWords);
      at::Tensor labels = tokens.roll(-1, 1);
      const SequenceScope scope(engine.accelerator().mesh(), {{tokens}, {labels}});
      const at::Tensor sum = torch::nn::functional::cross_entropy(
          engine(tokens).flatten(0, 1),
          labels.flatten(),
          torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
      engine.backward(scope.mean(sum, at::scalar_tensor(labels.numel())));
      engine.step();
    }
    EXPECT_EQ(engine.global_samples(), 8);
    Weights own = weights_of(engine.accelerator(), *net);
    const std::lock_guard lock(mutex);
    weights = std::move(own);
  });
  return weights;
}

TEST(TensorParallelEngine, RanksThatDivideSequencesTrainAsOneProcess) {
  const Weights one = train_on_parts(1, "");
  for (const int stage : {0, 2}) {
    const std::string keys = R"(, "sequence_parallel_size": 2, "zero_optimization": {"stage": )" +
                             std::to_string(stage) + "}";
    EXPECT_LT(largest_difference(train_on_parts(2, keys), one), 1e-12) << stage;
  }
}

}  // namespace
}  // namespace lockstep::divided_engine
