// SPDX-License-Identifier: Apache-2.0
// Training a pipeline on a mesh equals training the layers in one process on the global batch.
#include <map>
#include <mutex>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/test_mesh_options.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/pipeline/pipeline_module.h"
#include "lockstep/tensor_parallel/test_gpt.h"

namespace lockstep {
namespace {

using pipeline::Layers;
using pipeline_schedule::ScheduleKind;
using testing::HasSubstr;

constexpr int64_t kGlobalBatch = 16;
constexpr int64_t kBatches = 3;
constexpr double kMaxNorm = 0.5;

/// Computes the scores of all words with the weight of an Embedding.
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(torch::nn::Embedding embedding)
      : words(register_module("words", std::move(embedding))) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, words->weight); }
  torch::nn::Embedding words;
};
TORCH_MODULE(TiedHead);

enum class Head {
  kOwn,
  kTied,
  kCopied  ///< Begins with the values of the first layer, and is trained alone.
};

torch::nn::Sequential make_layers(Head head) {
  static std::mutex drawing;  // torch's default generator is the process's.
  const std::lock_guard lock(drawing);
  torch::manual_seed(3);
  using namespace test_gpt;
  torch::nn::Embedding words(kWords, kWidth);
  torch::nn::Sequential layers(
      words,
      Block(0),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})),
      Block(0),
      Block(0),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  if (head == Head::kOwn) {
    layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWords).bias(false)));
  } else if (head == Head::kTied) {
    layers->push_back(TiedHead(words));
  } else {
    torch::nn::Embedding copy(kWords, kWidth);
    copy->weight.set_data(words->weight.detach().clone());
    layers->push_back(TiedHead(copy));
  }
  layers->push_back(torch::nn::Identity());
  layers->to(at::kDouble);
  return layers;
}

at::Tensor all_tokens() {
  return at::randint(
      test_gpt::kWords,
      {kBatches * kGlobalBatch, test_gpt::kPositions},
      at::detail::createCPUGenerator(11),
      at::kLong);
}

at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& tokens) {
  return at::cross_entropy_loss(
      scores.narrow(1, 0, tokens.size(1) - 1).flatten(0, 1),
      tokens.narrow(1, 1, tokens.size(1) - 1).flatten());
}

struct Job {
  int world = 1;
  MeshShape mesh = {};
  pipeline::PipelineOptions options = {.micro_batches = 2};
  Head head = Head::kOwn;
  bool frozen = false;
  int zero_stage = 0;
  int64_t accumulation = 1;
  bool clips_alone = false;              ///< By the norm of each process's own gradients.
  std::filesystem::path save_to = {};    ///< After the first pass.
  std::filesystem::path load_from = {};  ///< Before the only pass.
  std::function<void(AcceleratorOptions&)> change = nullptr;
};

struct Trained {
  std::map<std::string, at::Tensor> weights;
  std::vector<double> losses;  ///< Of every process; means over the data parallel ones.
  double evaluated = 0;
};

void freeze(torch::nn::Sequential& layers) {
  for (const size_t layer : {0, 1}) {
    for (const at::Tensor& parameter : layers->ptr(layer)->parameters()) {
      parameter.requires_grad_(false);
    }
  }
}

/// Ranks are threads here, so one more each would only wait for a core.
void compute_alone() {
  at::set_num_threads(1);
}

/// Trains for two passes; with `load_from` for the second one.
template <typename Model, typename Loss>
void train_model(
    Accelerator& accelerator, const Job& job, const Model& model, const Loss& loss, Trained& own) {
  const int64_t rows = kGlobalBatch / job.accumulation / accelerator.mesh().data.size();
  data::Loader loader(
      data::TensorDataset(all_tokens(), at::arange(kBatches * kGlobalBatch)), {.batch_size = rows});
  optim::AdamW optimizer(model->parameters(), {.lr = 0.01, .eps = 1e-3, .weight_decay = 0.1});
  auto [prepared, updates, batches] = accelerator.prepare(model, optimizer, loader);
  if (!job.load_from.empty()) {
    accelerator.load_state(job.load_from);
  }
  for (int pass = job.load_from.empty() ? 0 : 1; pass < 2; ++pass) {
    for (const auto& batch : batches) {
      const auto scope = accelerator.accumulate();
      const at::Tensor value = loss(batch.data);
      accelerator.backward(value);
      own.losses.push_back(
          accelerator.reduce(value.detach(), ReduceOp::kAvg).template item<double>());
      if (job.clips_alone) {
        optim::clip_grad_norm_(model->parameters(), kMaxNorm);
      } else {
        accelerator.clip_grad_norm_(model->parameters(), kMaxNorm);
      }
      updates.step();
      updates.zero_grad();
    }
    if (pass == 0 && !job.save_to.empty()) {
      accelerator.save_state(job.save_to);
    }
  }
}

Trained train_in_one_process(const Job& job) {
  compute_alone();
  Trained result;
  accelerated_ranks(1, {}, [&](Accelerator& accelerator) {
    compute_alone();
    torch::nn::Sequential model = make_layers(job.head);
    if (job.frozen) {
      freeze(model);
    }
    const auto loss = [&](const at::Tensor& tokens) {
      return loss_of(model->forward(tokens), tokens);
    };
    train_model(accelerator, job, model, loss, result);
    const torch::NoGradGuard no_grad;
    result.evaluated = loss(all_tokens()).item<double>();
    std::set<const void*> seen;
    for (const auto& item : model->named_parameters()) {
      if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
        result.weights[item.key()] = item.value().detach().clone();
      }
    }
  });
  return result;
}

AcceleratorOptions options_of(const Job& job) {
  AcceleratorOptions options = mesh_options(job.mesh, plan_of_list("0", "6"), job.zero_stage);
  options.gradient_accumulation_steps = job.accumulation;
  if (job.change) {
    job.change(options);
  }
  return options;
}

/// Returns the weights of all stages, after a check that processes with the same ones agree.
Trained train(const Job& job) {
  compute_alone();
  Trained result;
  std::mutex mutex;
  accelerated_ranks(job.world, options_of(job), [&](Accelerator& accelerator) {
    compute_alone();  // Of this thread.
    torch::nn::Sequential layers = make_layers(job.head);
    if (job.frozen) {
      freeze(layers);
    }
    pipeline::PipelineModule model(
        pipeline::layers_of(layers), loss_of, accelerator.mesh(), job.options);
    Trained own;
    const auto loss = [&](const at::Tensor& tokens) { return model->forward(tokens, tokens); };
    train_model(accelerator, job, model, loss, own);
    own.evaluated = model->eval_batch(all_tokens(), all_tokens());
    const auto& objects = internal::AcceleratorInternals::objects(accelerator);
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& item : objects.models[0].parameters()) {
      auto* const division = objects.division_of(item.tensor);
      const at::Tensor copy = item.tensor.detach().clone();
      own.weights[item.name] = division ? division->full(item.tensor, copy) : copy;
    }
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(result.losses.empty() || result.losses == own.losses) << "of another process";
    result.losses = own.losses;
    result.evaluated = own.evaluated;
    for (const auto& [name, value] : own.weights) {
      const auto place = result.weights.emplace(name, value).first;
      EXPECT_TRUE(at::equal(place->second, value)) << name;
    }
  });
  return result;
}

double difference(const Trained& got, const Trained& expected) {
  EXPECT_EQ(got.weights.size(), expected.weights.size());
  double most = std::abs(got.evaluated - expected.evaluated);
  for (const auto& [name, value] : expected.weights) {
    most = std::max(most, (got.weights.at(name) - value).abs().max().item<double>());
  }
  return most;
}

Job alone(const Job& job) {
  return {.head = job.head, .frozen = job.frozen};
}

class PipelineOnAMesh : public testing::TestWithParam<std::pair<const char*, Job>> {};

TEST_P(PipelineOnAMesh, TrainsAsOneProcessDoes) {
  const Job job = GetParam().second;
  const Trained expected = train_in_one_process(alone(job));
  const Trained got = train(job);
  EXPECT_LE(difference(got, expected), 1e-12);
  if (job.accumulation == 1) {
    ASSERT_EQ(got.losses.size(), expected.losses.size());
    for (size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], expected.losses[i], 1e-12) << i;
    }
  }
}

pipeline::PipelineOptions with(ScheduleKind kind, int chunks, int micro_batches) {
  return {.schedule = kind, .chunks_per_rank = chunks, .micro_batches = micro_batches};
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    PipelineOnAMesh,
    testing::Values(
        std::pair("one_process", Job{.options = with(ScheduleKind::kInterleaved, 2, 4)}),
        std::pair("one_process_tied", Job{.head = Head::kTied}),
        std::pair("data", Job{.world = 2}),
        std::pair(
            "gpipe",
            Job{.world = 2, .mesh = {.pp = 2}, .options = with(ScheduleKind::kGPipe, 1, 4)}),
        std::pair(
            "one_forward_one_backward",
            Job{.world = 2, .mesh = {.pp = 2}, .options = with(ScheduleKind::k1F1B, 1, 8)}),
        std::pair(
            "interleaved",
            Job{.world = 2, .mesh = {.pp = 2}, .options = with(ScheduleKind::kInterleaved, 2, 4)}),
        std::pair(
            "zero_bubble",
            Job{.world = 2, .mesh = {.pp = 2}, .options = with(ScheduleKind::kZeroBubble, 2, 4)}),
        std::pair(
            "four_stages",
            Job{.world = 4,
                .mesh = {.pp = 4},
                .options = {.micro_batches = 4, .cut = pipeline::CutAt{{1, 3, 4}}}}),
        std::pair("with_data", Job{.world = 4, .mesh = {.pp = 2}}),
        std::pair("with_tensor", Job{.world = 4, .mesh = {.pp = 2, .tp = 2}}),
        std::pair("tied", Job{.world = 2, .mesh = {.pp = 2}, .head = Head::kTied}),
        std::pair("tied_with_data", Job{.world = 4, .mesh = {.pp = 2}, .head = Head::kTied}),
        std::pair(
            "tied_zero_bubble",
            Job{.world = 2,
                .mesh = {.pp = 2},
                .options = with(ScheduleKind::kZeroBubble, 2, 4),
                .head = Head::kTied}),
        std::pair(
            "tied_over_four",
            Job{.world = 4,
                .mesh = {.pp = 4},
                .options = {.micro_batches = 4, .cut = pipeline::CutAt{{1, 3, 4}}},
                .head = Head::kTied}),
        std::pair("frozen", Job{.world = 2, .mesh = {.pp = 2}, .frozen = true}),
        std::pair("accumulation", Job{.world = 4, .mesh = {.pp = 2}, .accumulation = 2}),
        std::pair(
            "zero_1", Job{.world = 4, .mesh = {.pp = 2}, .head = Head::kTied, .zero_stage = 1}),
        std::pair("zero_2", Job{.world = 4, .mesh = {.pp = 2}, .zero_stage = 2})),
    [](const auto& one) { return one.param.first; });

TEST(PipelineMesh, CopiesThatAreNotTiedDiffer) {
  const Trained expected = train_in_one_process({.head = Head::kTied});
  const Trained got = train({.world = 2, .mesh = {.pp = 2}, .head = Head::kCopied});
  EXPECT_GT(
      (got.weights.at("0.weight") - expected.weights.at("0.weight")).abs().max().item<double>(),
      1e-4);
}

TEST(PipelineMesh, ClippingByTheNormOfOneStageDiffers) {
  const Job job{.world = 2, .mesh = {.pp = 2}, .clips_alone = true};
  EXPECT_GT(difference(train(job), train_in_one_process(alone(job))), 1e-6);
}

TEST(PipelineMesh, ACheckpointFitsEveryMesh) {
  const TestFolder folder;
  for (const int stage : {0, 1}) {
    const std::filesystem::path saved = folder.path() / fmt::format("of_zero_{}", stage);
    const Job saving{
        .world = 4, .mesh = {.pp = 2}, .head = Head::kTied, .zero_stage = stage, .save_to = saved};
    const Trained expected = train_in_one_process(alone(saving));
    EXPECT_LE(difference(train(saving), expected), 1e-12);
    Job plain = alone(saving);
    plain.load_from = saved;
    EXPECT_LE(difference(train_in_one_process(plain), expected), 1e-12);
    for (Job resumed :
         {saving,
          Job{.world = 2, .mesh = {.pp = 2}, .options = with(ScheduleKind::kInterleaved, 2, 2)},
          Job{.world = 2, .zero_stage = 1},
          Job{.world = 4,
          .mesh = {.pp = 4},
          .options = {.micro_batches = 4, .cut = pipeline::CutAt{{1, 3, 4}}}}}) {
      resumed.head = Head::kTied;
      resumed.save_to.clear();
      resumed.load_from = saved;
      SCOPED_TRACE(mesh_text(resumed.mesh));
      EXPECT_LE(difference(train(resumed), expected), 1e-12);
    }
  }
}

TEST(PipelineMesh, ACheckpointOfOneProcessIsCut) {
  const TestFolder folder;
  const Job saving{.head = Head::kTied, .save_to = folder.path() / "saved"};
  const Trained expected = train_in_one_process(saving);
  EXPECT_LE(
      difference(
          train(
              {.world = 4,
               .mesh = {.pp = 2},
               .head = Head::kTied,
               .zero_stage = 1,
               .load_from = saving.save_to}),
          expected),
      1e-12);
}

/// Returns infinity, as a gradient that does not fit its dtype, in the backward of the first call.
struct OverflowImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor result = x * 1;
    if (calls++ == 0 && result.requires_grad()) {
      result.register_hook(
          [](const at::Tensor& gradient) { return gradient * at::full({}, INFINITY); });
    }
    return result;
  }
  int calls = 0;
};
TORCH_MODULE(Overflow);

TEST(PipelineMesh, AllStagesSkipAnUpdateIfTheGradientsOfOneOverflow) {
  AcceleratorOptions options;
  options.mesh = MeshShape{.pp = 2};
  options.mixed_precision = Precision::kFP16;
  options.grad_scaler.init_scale = 1024;
  accelerated_ranks(2, options, [](Accelerator& accelerator) {
    torch::nn::Sequential layers(
        torch::nn::Linear(4, 4), Overflow(), torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
    pipeline::PipelineModule model(
        pipeline::layers_of(layers),
        [](const at::Tensor& output, const at::Tensor& target) {
          return at::mse_loss(output.to(at::kFloat), target);
        },
        accelerator.mesh(),
        pipeline::PipelineOptions{.micro_batches = 2, .cut = pipeline::CutUniformly{}});
    optim::AdamW adam(model->parameters(), {.lr = 0.1});
    auto [prepared, optimizer] = accelerator.prepare(model, adam);
    const auto update = [&, &updates = optimizer] {
      const at::Tensor before = model->parameters()[0].detach().clone();
      {
        const auto cast = accelerator.autocast();
        accelerator.backward(model->forward(at::ones({4, 4}), at::zeros({4, 2})));
      }
      updates.step();
      updates.zero_grad();
      return !at::equal(before, model->parameters()[0]);
    };
    EXPECT_FALSE(update());  // Only the first stage has infinite gradients.
    EXPECT_TRUE(update());
    EXPECT_EQ(accelerator.scaler()->get_scale(), 512);
  });
}

TEST(PipelineMesh, LayersAreCutByTheirMeasuredTime) {
  ranks(2, [](Group group) {
    torch::nn::Sequential layers;
    for (int i = 0; i < 6; ++i) {
      layers->push_back(torch::nn::Linear(8, 8));
    }
    layers->push_back(torch::nn::Linear(8, 4000));
    const comm::MeshGroups mesh =
        comm::connect_mesh(group, {.pp = 2, .dp_replicate = 1, .dp_shard = 1});
    pipeline::PipelineModule model(
        pipeline::layers_of(layers),
        loss_of,
        mesh,
        pipeline::PipelineOptions{.cut = pipeline::CutByTime{at::ones({256, 8})}});
    EXPECT_GE(model->bounds()[1], 4U);
    Group line = mesh.pipeline;
    const at::Tensor own = at::full({1}, static_cast<int64_t>(model->bounds()[1]), at::kLong);
    EXPECT_TRUE(at::equal(line.broadcast(own.clone()).wait(), own));
  });
}

std::string error_on_mesh(const Job& job) {
  return error_of<ConfigError>([&] { train(job); });
}

TEST(PipelineMesh, WhatItCannotTrainIsAnError) {
  EXPECT_THAT(
      error_on_mesh({.world = 4, .mesh = {.pp = 2}, .zero_stage = 3}),
      HasSubstr("got a pipeline with ZeRO stage 3"));
  EXPECT_THAT(
      error_on_mesh({.world = 2, .mesh = {.pp = 2}, .options = {.cut = pipeline::CutAt{{7}}}}),
      HasSubstr("the layers of stage 1 have no parameters"));
  EXPECT_THAT(
      error_on_mesh(
          {.world = 2,
           .mesh = {.pp = 2},
           .options = {.cut = pipeline::CutAt{{2}}},
           .frozen = true}),
      HasSubstr("a stage of the pipeline has no trained parameter"));
  EXPECT_THAT(
      error_on_mesh({.world = 2, .mesh = {.pp = 2}, .options = {.micro_batches = 3}}),
      HasSubstr("that 3 micro-batches divide"));
  AcceleratorOptions options;
  options.mesh = MeshShape{.pp = 2};
  accelerated_ranks(2, options, [](Accelerator& accelerator) {
    EXPECT_THAT(
        error_of<ConfigError>([&] { accelerator.prepare(torch::nn::Linear(2, 2)); }),
        HasSubstr("divides the layers of a model, but this model is no pipeline"));
  });
}

}  // namespace
}  // namespace lockstep
