// SPDX-License-Identifier: Apache-2.0
// An engine of a pipeline trains as an engine of the whole model.
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/mesh_groups.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/pipeline/pipeline_module.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int kMicroBatches = 3;

std::string config_of(int stage) {
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3, "gradient_clipping": 0.1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": )" +
         std::to_string(stage) + "}}";
}

torch::nn::Sequential make_layers() {
  torch::nn::Sequential layers(
      torch::nn::Linear(6, 16),
      torch::nn::Tanh(),
      torch::nn::Linear(16, 8),
      torch::nn::Linear(8, 2));
  const at::NoGradGuard no_grad;
  for (auto& parameter : layers->parameters()) {
    parameter.copy_(
        at::sin(at::arange(parameter.numel(), at::kFloat) + 1).reshape(parameter.sizes()) / 2);
  }
  layers->to(at::kDouble);
  return layers;
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();
}

at::Tensor inputs_of(int number) {
  return engine_batch(number).to(at::kDouble);
}

at::Tensor targets_of(int number) {
  return at::cos(inputs_of(number)).narrow(1, 0, 2);
}

struct Trained {
  std::vector<double> losses;  ///< Of updates, then of an evaluation.
  std::map<std::string, at::Tensor> weights;
};

/// Trains two updates, whose micro-batches the data parallel ranks divide.
Trained train_whole() {
  Trained result;
  on_engine_ranks(1, config_of(0), [&](InitializeOptions options) {
    torch::nn::Sequential layers = make_layers();
    auto made = initialize(layers, std::move(options));
    auto& engine = std::get<0>(made);
    for (int update = 0; update < 3; ++update) {
      double sum = 0;
      const at::AutoGradMode grad(update < 2);
      for (int i = 0; i < kMicroBatches; ++i) {
        const int number = update * kMicroBatches + i;
        const at::Tensor loss = loss_of(layers->forward(inputs_of(number)), targets_of(number));
        sum += loss.item<double>();
        if (update < 2) {
          engine.backward(loss);
          engine.step();
        }
      }
      result.losses.push_back(sum / kMicroBatches);
    }
    for (const auto& item : layers->named_parameters()) {
      result.weights[item.key()] = item.value().detach().clone();
    }
  });
  return result;
}

template <typename Body>
void on_stages(int world, int stage, const Body& body) {
  on_engine_ranks(world, config_of(stage), [&](InitializeOptions options) {
    MeshShape mesh{.pp = 2, .dp_replicate = world / 2, .dp_shard = 1};
    options.accelerator.mesh = MeshShape{.pp = 2};
    pipeline::PipelineModule model(
        pipeline::layers_of(make_layers()),
        loss_of,
        comm::connect_mesh(options.connected->group, mesh),
        pipeline::PipelineOptions{});
    auto made = initialize(model, std::move(options));
    body(std::get<0>(made), model);
  });
}

TEST(PipelineEngine, TrainsAsAnEngineOfTheWholeModel) {
  const Trained whole = train_whole();
  for (const int stage : {0, 1, 2}) {
    std::mutex mutex;
    std::set<std::string> names;
    on_stages(2, stage, [&](auto& engine, auto& model) {
      std::vector<double> losses;
      for (int update = 0; update < 3; ++update) {
        pipeline::MicroBatches batch;
        for (int i = 0; i < kMicroBatches; ++i) {
          batch.inputs.push_back(inputs_of(update * kMicroBatches + i));
          batch.targets.push_back(targets_of(update * kMicroBatches + i));
        }
        losses.push_back(update < 2 ? engine.train_batch(batch) : engine.eval_batch(batch));
      }
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i], whole.losses[i], 1e-12) << "ZeRO stage " << stage;
      }
      for (const auto& item : model->named_parameters()) {
        names.insert(item.key());
        EXPECT_TRUE(at::allclose(item.value(), whole.weights.at(item.key()), 0, 1e-12))
            << item.key() << ", ZeRO stage " << stage;
      }
      EXPECT_EQ(engine.global_steps(), 2);
      EXPECT_EQ(engine.micro_steps(), 2 * kMicroBatches);
      EXPECT_EQ(engine.global_samples(), 2 * kMicroBatches * 4);
    });
    EXPECT_EQ(names.size(), whole.weights.size());
  }
}

TEST(PipelineEngine, CountsSamplesOfDataParallelRanksAndReadsLoaders) {
  std::vector<double> losses;
  std::mutex mutex;
  on_stages(4, 0, [&](auto& engine, auto& /*model*/) {
    EXPECT_EQ(engine.train_batch_size(), 2 * kMicroBatches * 4);
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> targets;
    for (int i = 0; i < 2 * kMicroBatches; ++i) {
      inputs.push_back(inputs_of(i));
      targets.push_back(targets_of(i));
    }
    auto loader = engine.accelerator().prepare(
        data::Loader(data::TensorDataset(at::cat(inputs), at::cat(targets)), {.batch_size = 4}));
    auto next = loader.begin();
    const double loss = engine.train_batch(next);
    try {
      engine.train_batch(next);
      ADD_FAILURE() << "the loader has no more batches";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the loader has ended"));
    }
    const std::lock_guard lock(mutex);
    losses.push_back(loss);
  });
  torch::nn::Sequential layers = make_layers();
  double sum = 0;
  for (int i = 0; i < 2 * kMicroBatches; ++i) {
    sum += loss_of(layers->forward(inputs_of(i)), targets_of(i)).item<double>();
  }
  ASSERT_EQ(losses.size(), 4);
  for (const double loss : losses) {
    EXPECT_NEAR(loss, sum / (2 * kMicroBatches), 1e-12);
  }
}

}  // namespace
}  // namespace lockstep
