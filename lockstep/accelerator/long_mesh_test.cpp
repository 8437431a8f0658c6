// SPDX-License-Identifier: Apache-2.0
// Fifty updates on meshes of eight ranks equal those of one process, with all that a loop may have:
// accumulation, clipping, a frozen parameter, weight decay, and a checkpoint in between.
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_mesh_options.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/test_weights.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/context_parallel/sequence_scope.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/pipeline/pipeline_module.h"
#include "lockstep/tensor_parallel/test_gpt.h"

namespace lockstep::long_mesh {
namespace {

using test_gpt::kPositions;
using test_gpt::kWidth;
using test_gpt::kWords;

constexpr int64_t kUpdates = 50;
constexpr int64_t kBatch = 8;        ///< Texts of an update.
constexpr int64_t kUpdatesPass = 5;  ///< Of one pass over the texts.

struct Job {
  int world = 1;
  MeshShape mesh = {};
  int64_t accumulation = 1;
  int zero_stage = 0;
  at::ScalarType dtype = at::kDouble;
};

struct InputImpl : torch::nn::Module {
  InputImpl()
      : words(register_module("words", torch::nn::Embedding(kWords, kWidth))),
        places(register_module("places", torch::nn::Embedding(kPositions, kWidth))) {}
  at::Tensor forward(const at::Tensor& tokens) {
    return words(tokens) + places(at::arange(tokens.size(1)).unsqueeze(0));
  }
  torch::nn::Embedding words, places;
};
TORCH_MODULE(Input);

torch::nn::Sequential make_layers(at::ScalarType dtype) {
  static std::mutex drawing;  // torch's default generator is the process's.
  const std::lock_guard lock(drawing);
  torch::manual_seed(3);
  torch::nn::Sequential layers(
      Input(),
      test_gpt::Block(0),
      test_gpt::Block(0),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})),
      torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWords).bias(false)));
  layers->to(dtype);
  layers->ptr(0)->as<InputImpl>()->places->weight.set_requires_grad(false);
  return layers;
}

at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& labels) {
  return at::cross_entropy_loss(scores.flatten(0, 1), labels.flatten());
}

AcceleratorOptions options_of(const Job& job) {
  AcceleratorOptions options = mesh_options(job.mesh, plan_of_list("0.words", "4"), job.zero_stage);
  options.gradient_accumulation_steps = job.accumulation;
  return options;
}

/// Trains until `last` updates are done, in a state of `folder` if it has one, and saves it there.
template <typename Model, typename Forward>
Weights train_until(
    Accelerator& accelerator,
    const Job& job,
    int64_t last,
    const std::filesystem::path& folder,
    Model& model,
    const Forward& forward) {
  const int64_t rows = kUpdatesPass * kBatch;
  const at::Tensor texts =
      at::randint(kWords, {rows, kPositions + 1}, at::detail::createCPUGenerator(11), at::kLong);
  data::Loader loader(
      data::TensorDataset(
          texts.slice(1, 0, kPositions).contiguous(), texts.slice(1, 1).contiguous()),
      {.batch_size = kBatch / job.accumulation / accelerator.mesh().data.size(), .shuffle = true});
  auto [prepared, updates, batches] = accelerator.prepare(
      model,
      optim::AdamW(model->parameters(), {.lr = 0.01, .eps = 1e-3, .weight_decay = 0.1}),
      loader);
  if (std::filesystem::exists(folder)) {
    accelerator.load_state(folder);
  }
  while (updates.steps() < last) {
    for (auto& batch : batches) {
      const auto micro_step = accelerator.accumulate();
      const SequenceScope scope(accelerator.mesh(), {{batch.data}, {batch.target}});
      const int64_t count = batch.target.numel();
      accelerator.backward(
          scope.mean(forward(batch.data, batch.target) * count, at::tensor(count)));
      accelerator.clip_grad_norm_(model->parameters(), 0.5);
      updates.step();
      updates.zero_grad();
    }
  }
  if (last < kUpdates) {
    accelerator.save_state(folder);
  }
  return weights_of(accelerator, *model);
}

/// Returns rank 0's weights.
Weights train(const Job& job, int64_t last, const std::filesystem::path& folder) {
  Weights result;
  accelerated_ranks(job.world, options_of(job), [&](Accelerator& accelerator) {
    at::set_num_threads(1);
    torch::nn::Sequential layers = make_layers(job.dtype);
    Weights own;
    if (job.mesh.pp > 1) {
      pipeline::PipelineModule model(
          pipeline::layers_of(layers),
          loss_of,
          accelerator.mesh(),
          pipeline::PipelineOptions{.micro_batches = 2});
      own = train_until(
          accelerator, job, last, folder, model, [&](const at::Tensor& x, const at::Tensor& y) {
            return model->forward(x, y);
          });
    } else {
      own = train_until(
          accelerator, job, last, folder, layers, [&](const at::Tensor& x, const at::Tensor& y) {
            return loss_of(layers->forward(x), y);
          });
    }
    if (accelerator.is_main_process()) {
      result = own;
    }
  });
  return result;
}

const Weights& trained_alone(at::ScalarType dtype) {
  static std::map<at::ScalarType, Weights> trained;
  if (!trained.contains(dtype)) {
    trained[dtype] = train({.dtype = dtype}, kUpdates, {});
  }
  return trained[dtype];
}

class FiftyUpdates : public testing::TestWithParam<std::pair<const char*, Job>> {};

TEST_P(FiftyUpdates, EqualThoseOfOneProcess) {
  const TestFolder folder;
  const Job job = GetParam().second;
  train(job, kUpdates / 2, folder.path() / "saved");
  const Weights got = train(job, kUpdates, folder.path() / "saved");
  // Ranks add in another order; the weights are below 2.
  const double tolerance = job.dtype == at::kDouble ? 1e-12 : 1e-6;
  EXPECT_LE(largest_difference(got, trained_alone(job.dtype)), tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    FiftyUpdates,
    testing::Values(
        std::pair("data", Job{.world = 8}),
        std::pair("data_and_tensor", Job{.world = 8, .mesh = {.tp = 2}, .accumulation = 2}),
        std::pair(
            "ring_and_tensor", Job{.world = 8, .mesh = {.cp = 2, .tp = 2}, .accumulation = 2}),
        std::pair(
            "ulysses_and_tensor",
            Job{.world = 8, .mesh = {.sp = 2, .tp = 2}, .accumulation = 2, .zero_stage = 1}),
        std::pair("ring", Job{.world = 8, .mesh = {.cp = 2}, .accumulation = 2, .zero_stage = 3}),
        std::pair("pipeline_and_tensor", Job{.world = 8, .mesh = {.pp = 2, .tp = 2}}),
        std::pair("pipeline", Job{.world = 8, .mesh = {.pp = 2}, .zero_stage = 1}),
        std::pair(
            "ring_and_tensor_in_float",
            Job{.world = 4, .mesh = {.cp = 2, .tp = 2}, .dtype = at::kFloat}),
        std::pair(
            "ulysses_in_float",
            Job{.world = 4,
                .mesh = {.sp = 2},
                .accumulation = 2,
                .zero_stage = 1,
                .dtype = at::kFloat}),
        std::pair(
            "pipeline_and_tensor_in_float",
            Job{.world = 4, .mesh = {.pp = 2, .tp = 2}, .dtype = at::kFloat})),
    [](const auto& one) { return one.param.first; });

}  // namespace
}  // namespace lockstep::long_mesh
