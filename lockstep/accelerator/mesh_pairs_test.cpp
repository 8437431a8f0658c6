// SPDX-License-Identifier: Apache-2.0
// Training a transformer with experts on meshes of several dimensions equals training in one
// process on the global batch.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/prepare/divided_state.h"
#include "lockstep/accelerator/test_mesh_options.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/weights/load_model.h"
#include "lockstep/context_parallel/sequence_scope.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/expert_parallel/moe.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/lamb.h"
#include "lockstep/pipeline/pipeline_module.h"
#include "lockstep/tensor_parallel/test_gpt.h"

namespace lockstep::mesh_pairs {
namespace {

using internal::AcceleratorInternals;
using pipeline_schedule::ScheduleKind;
using test_gpt::kPositions;
using test_gpt::kWidth;
using test_gpt::kWords;
using testing::HasSubstr;

constexpr int64_t kGlobalBatch = 16;
constexpr int64_t kBatches = 2;
constexpr double kMaxNorm = 0.5;

/// Embeds words, and their positions.
struct WordsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& tokens) {
    return words(tokens) + positions(at::arange(tokens.size(1)).unsqueeze(0));
  }
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(kWords, kWidth));
  torch::nn::Embedding positions =
      register_module("positions", torch::nn::Embedding(kPositions, kWidth));
};
TORCH_MODULE(Words);

/// Adds a mixture of experts to its input.
struct MixtureImpl : torch::nn::Module {
  explicit MixtureImpl(const Group& group)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        moe(register_module(
            "moe",
            nn::MoE(
                nn::MoEOptions{.hidden_size = kWidth, .num_experts = 4, .intermediate_size = 6},
                group))) {}
  at::Tensor forward(const at::Tensor& x) { return x + moe(norm(x)); }
  torch::nn::LayerNorm norm;
  nn::MoE moe;
};
TORCH_MODULE(Mixture);

/// Gives a tensor numbers in [-scale, scale] that differ for each name.
void fill(const at::Tensor& tensor, const std::string& name, double scale) {
  double phase = 0;
  for (const char letter : name) {
    phase = std::fmod(phase * 1.7 + letter, 1000.0);
  }
  tensor.copy_(at::sin(at::arange(tensor.numel(), at::kDouble) * 12.9898 + phase)
                   .mul(scale)
                   .view(tensor.sizes()));
}

struct Model {
  torch::nn::Sequential layers;
  std::vector<nn::MoE> mixtures;
};

Model make_model(const Group& experts) {
  Mixture first(experts);
  Mixture second(experts);
  Model model{
      .layers = torch::nn::Sequential(
          Words(),
          test_gpt::Block(0),
          first,
          test_gpt::Block(0),
          second,
          torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})),
          torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWords).bias(false))),
      .mixtures = {first->moe, second->moe}};
  model.layers->to(at::kDouble);
  const torch::NoGradGuard no_grad;
  for (auto& item : model.layers->named_parameters()) {
    const bool is_norm = item.key().find("norm") != std::string::npos || item.key() == "5.weight";
    fill(item.value(), item.key(), is_norm ? 0.1 : 0.4);
    if (is_norm && item.key().ends_with("weight")) {
      item.value().add_(1);
    }
  }
  return model;
}

at::Tensor all_texts() {
  return at::randint(
      kWords,
      {kBatches * kGlobalBatch, kPositions + 1},
      at::detail::createCPUGenerator(11),
      at::kLong);
}

/// Returns labels, each the next word. Two of each text are ignored, so that the parts of a
/// sequence have different numbers of them.
at::Tensor all_labels(const at::Tensor& texts) {
  at::Tensor labels = texts.slice(1, 1).clone();
  labels.select(1, kPositions - 1).fill_(-100);
  labels.select(1, 1).fill_(-100);
  return labels;
}

struct Job {
  int world = 1;
  MeshShape mesh = {};
  ScheduleKind schedule = ScheduleKind::k1F1B;
  int zero_stage = 0;
  int64_t accumulation = 1;
  bool balances = false;                 ///< Adds the load balancing loss.
  double factor_of_experts = 1;          ///< Multiplies their gradients.
  bool takes_own_mean = false;           ///< Wrong: of the labels of a process's part.
  bool clips_alone = false;              ///< Wrong: by the norm of a process's gradients.
  std::filesystem::path save_to = {};    ///< After the first pass.
  std::filesystem::path load_from = {};  ///< Before the only pass.
};

struct Trained {
  std::map<std::string, at::Tensor> weights;
  std::vector<double> norms;
};

AcceleratorOptions options_of(const Job& job) {
  AcceleratorOptions options = mesh_options(job.mesh, plan_of_list("0.words", "6"), job.zero_stage);
  options.gradient_accumulation_steps = job.accumulation;
  return options;
}

at::Tensor loss_sum(const at::Tensor& scores, const at::Tensor& labels) {
  return at::cross_entropy_loss(
      scores.flatten(0, 1), labels.flatten(), {}, at::Reduction::Sum, /*ignore_index=*/-100);
}

at::Tensor mean_loss(
    const Job& job,
    const comm::MeshGroups& mesh,
    const at::Tensor& scores,
    const at::Tensor& labels) {
  const at::Tensor sum = loss_sum(scores, labels);
  const at::Tensor count = (labels != -100).sum();
  return job.takes_own_mean ? sum / count : mean_over_sequence(mesh, sum, count);
}

/// Trains `modules` for two passes; with `load_from` for the second one. `loss`: that of a batch
/// within a SequenceScope.
template <typename Modules, typename Loss>
void train_modules(
    Accelerator& accelerator, const Job& job, Modules modules, const Loss& loss, Trained& own) {
  const int64_t rows = kGlobalBatch / job.accumulation / accelerator.mesh().data.size();
  const at::Tensor texts = all_texts();
  data::Loader loader(
      data::TensorDataset(texts.slice(1, 0, kPositions), all_labels(texts)), {.batch_size = rows});
  optim::AdamW adam(modules->parameters(), {.lr = 0.01, .eps = 1e-3, .weight_decay = 0.1});
  auto [prepared, updates, batches] = accelerator.prepare(modules, adam, loader);
  if (!job.load_from.empty()) {
    accelerator.load_state(job.load_from);
  }
  for (int pass = job.load_from.empty() ? 0 : 1; pass < 2; ++pass) {
    for (auto& batch : batches) {
      const auto accumulation = accelerator.accumulate();
      {
        const SequenceScope scope(accelerator.mesh(), {{batch.data}, {batch.target}});
        accelerator.backward(loss(batch.data, batch.target));
      }
      const at::Tensor norm = job.clips_alone
                                  ? optim::clip_grad_norm_(modules->parameters(), kMaxNorm)
                                  : accelerator.clip_grad_norm_(modules->parameters(), kMaxNorm);
      own.norms.push_back(norm.item<double>());
      updates.step();
      updates.zero_grad();
    }
    if (pass == 0 && !job.save_to.empty()) {
      accelerator.save_state(job.save_to);
    }
  }
  const auto& objects = AcceleratorInternals::objects(accelerator);
  const NamedTensors parameters = objects.models[0].parameters();
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& item : objects.shards_parameters()
                                     ? full_sharded_model_tensors(objects, parameters, true)
                                     : full_model_tensors(objects, parameters, true)) {
    own.weights[item.name] = item.tensor.detach().clone();
  }
}

/// Returns the weights of all processes, after a check that they agree.
Trained train(const Job& job) {
  Trained result;
  std::mutex mutex;
  accelerated_ranks(job.world, options_of(job), [&](Accelerator& accelerator) {
    at::set_num_threads(1);  // Ranks are threads here.
    const comm::MeshGroups& mesh = accelerator.mesh();
    Model model = make_model(mesh.experts);
    for (const NamedTensor& item : expert_parallel::expert_parameters(*model.layers)) {
      if (job.factor_of_experts != 1) {
        item.tensor.register_hook(
            [&](const at::Tensor& gradient) { return gradient * job.factor_of_experts; });
      }
    }
    Trained own;
    const auto loss_of = [&](const at::Tensor& scores, const at::Tensor& labels) {
      return mean_loss(job, mesh, scores, labels);
    };
    if (job.mesh.pp == 1) {
      train_modules(
          accelerator,
          job,
          model.layers,
          [&](const at::Tensor& tokens, const at::Tensor& labels) {
            at::Tensor loss = loss_of(model.layers->forward(tokens), labels);
            if (job.balances) {
              loss = loss + 0.05 * expert_parallel::load_balancing_loss(
                                       {model.mixtures[0]->routing(), model.mixtures[1]->routing()},
                                       mesh.replicas);
            }
            return loss;
          },
          own);
    } else {
      const bool is_interleaved =
          job.schedule == ScheduleKind::kInterleaved || job.schedule == ScheduleKind::kZeroBubble;
      pipeline::PipelineModule stages(
          pipeline::layers_of(model.layers),
          loss_of,
          mesh,
          pipeline::PipelineOptions{
              .schedule = job.schedule,
              .chunks_per_rank = is_interleaved ? 2 : 1,
              .micro_batches = 2});
      model.layers = nullptr;
      train_modules(
          accelerator,
          job,
          stages,
          [&](const at::Tensor& tokens, const at::Tensor& labels) {
            return stages->forward(tokens, labels);
          },
          own);
    }
    const std::lock_guard lock(mutex);
    if (result.weights.empty()) {
      result = own;
    }
    if (job.clips_alone) {
      return;
    }
    for (const auto& [name, value] : own.weights) {
      EXPECT_LT((value - result.weights.at(name)).abs().max().item<double>(), 1e-13) << name;
    }
  });
  return result;
}

double difference(const Trained& got, const Trained& expected) {
  EXPECT_EQ(got.weights.size(), expected.weights.size());
  double most = 0;
  for (const auto& [name, value] : expected.weights) {
    most = std::max(most, (got.weights.at(name) - value).abs().max().item<double>());
  }
  return most;
}

const Trained& trained_alone(bool balances) {
  static const Trained plain = train({});
  static const Trained balanced = train({.balances = true});
  return balances ? balanced : plain;
}

class OnAMeshOfPairs : public testing::TestWithParam<std::pair<const char*, Job>> {};

TEST_P(OnAMeshOfPairs, TrainsAsOneProcessDoes) {
  Job job = GetParam().second;
  job.balances = job.mesh.pp == 1 && job.accumulation == 1;
  const Trained& expected = trained_alone(job.balances);
  const Trained got = train(job);
  EXPECT_LE(difference(got, expected), 1e-12);
  if (job.accumulation == 1) {
    ASSERT_EQ(got.norms.size(), expected.norms.size());
    for (size_t i = 0; i < expected.norms.size(); ++i) {
      EXPECT_NEAR(got.norms[i], expected.norms[i], 1e-12 * expected.norms[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    OnAMeshOfPairs,
    testing::Values(
        std::pair("experts", Job{.world = 4, .mesh = {.ep = 2}}),
        std::pair("experts_zero_1", Job{.world = 4, .mesh = {.ep = 2}, .zero_stage = 1}),
        std::pair(
            "experts_zero_2",
            Job{.world = 4, .mesh = {.ep = 2}, .zero_stage = 2, .accumulation = 2}),
        std::pair("experts_zero_3", Job{.world = 4, .mesh = {.ep = 2}, .zero_stage = 3}),
        std::pair("experts_of_all_zero_1", Job{.world = 2, .mesh = {.ep = 2}, .zero_stage = 1}),
        std::pair("tensor_and_experts", Job{.world = 4, .mesh = {.tp = 2, .ep = 2}}),
        std::pair(
            "tensor_and_experts_zero_1",
            Job{.world = 4, .mesh = {.tp = 2, .ep = 2}, .zero_stage = 1}),
        std::pair(
            "context_and_experts", Job{.world = 4, .mesh = {.cp = 2, .ep = 2}, .accumulation = 4}),
        std::pair("sequence_and_experts", Job{.world = 4, .mesh = {.sp = 2, .ep = 4}}),
        std::pair(
            "context_and_experts_zero_1",
            Job{.world = 4, .mesh = {.cp = 2, .ep = 2}, .zero_stage = 1}),
        std::pair("context_and_stages", Job{.world = 4, .mesh = {.pp = 2, .cp = 2}}),
        std::pair(
            "context_and_stages_zero_bubble",
            Job{.world = 4, .mesh = {.pp = 2, .cp = 2}, .schedule = ScheduleKind::kZeroBubble}),
        std::pair("sequence_and_stages", Job{.world = 4, .mesh = {.pp = 2, .sp = 2}}),
        std::pair("stages_and_experts", Job{.world = 4, .mesh = {.pp = 2, .ep = 2}}),
        std::pair(
            "stages_and_experts_zero_1",
            Job{.world = 4, .mesh = {.pp = 2, .ep = 2}, .zero_stage = 1, .accumulation = 2}),
        std::pair(
            "stages_tensor_and_experts", Job{.world = 8, .mesh = {.pp = 2, .tp = 2, .ep = 2}}),
        std::pair(
            "stages_context_and_experts",
            Job{.world = 8,
                .mesh = {.pp = 2, .cp = 2, .ep = 4},
                .schedule = ScheduleKind::kInterleaved})),
    [](const auto& one) { return one.param.first; });

TEST(MeshPairs, ClippingByTheNormOfOneProcessDiffers) {
  for (const MeshShape& mesh : {MeshShape{.ep = 2}, MeshShape{.pp = 2, .ep = 2}}) {
    SCOPED_TRACE(mesh_text(mesh));
    EXPECT_GT(
        std::abs(
            train({.world = 4, .mesh = mesh, .clips_alone = true}).norms[0] -
            trained_alone(false).norms[0]),
        1e-6);
  }
}

TEST(MeshPairs, TheMeanOfOnePartOfTheLabelsTrainsAnotherModel) {
  const Job job{.world = 4, .mesh = {.pp = 2, .cp = 2}, .takes_own_mean = true};
  EXPECT_GT(difference(train(job), trained_alone(false)), 1e-6);
}

TEST(MeshPairs, OtherGradientsOfExpertsUnderZeroGiveOtherWeights) {
  const Job job{.world = 4, .mesh = {.ep = 2}, .zero_stage = 1, .factor_of_experts = 2};
  EXPECT_GT(difference(train(job), trained_alone(false)), 1e-6);
}

TEST(MeshPairs, ACheckpointFitsOtherMeshes) {
  const TestFolder folder;
  for (Job saving :
       {Job{.world = 4, .mesh = {.ep = 2}, .zero_stage = 1},
        Job{.world = 4, .mesh = {.ep = 2}, .zero_stage = 3},
        Job{.world = 4, .mesh = {.pp = 2, .ep = 2}}}) {
    saving.save_to = folder.path() / fmt::format("{}_{}", saving.mesh.pp, saving.zero_stage);
    EXPECT_LE(difference(train(saving), trained_alone(false)), 1e-12);
    for (Job resumed :
         {Job{},
          Job{.world = 4, .mesh = {.ep = 2}, .zero_stage = 2},
          Job{.world = 4, .mesh = {.tp = 2, .ep = 2}},
          Job{.world = 4, .mesh = {.pp = 2, .ep = 2}, .zero_stage = 1}}) {
      resumed.load_from = saving.save_to;
      SCOPED_TRACE(fmt::format(
          "{}, ZeRO {}, saved by {}, ZeRO {}",
          mesh_text(resumed.mesh),
          resumed.zero_stage,
          mesh_text(saving.mesh),
          saving.zero_stage));
      EXPECT_LE(difference(train(resumed), trained_alone(false)), 1e-12);
    }
  }
}

TEST(MeshPairs, SaveModelUnderZero3WritesTheFullModel) {
  const TestFolder folder;
  for (const MeshShape& mesh : {MeshShape{.tp = 2}, MeshShape{.ep = 2}}) {
    SCOPED_TRACE(mesh_text(mesh));
    const std::filesystem::path saved = folder.path() / mesh_text(mesh);
    accelerated_ranks(
        4, options_of({.mesh = mesh, .zero_stage = 3}), [&](Accelerator& accelerator) {
          const Model model = make_model(accelerator.mesh().experts);
          accelerator.prepare(model.layers, optim::AdamW(model.layers->parameters(), {.lr = 0.01}));
          accelerator.save_model(model.layers, saved);
        });
    const Model expected = make_model(Group());
    const Model loaded = make_model(Group());
    {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : loaded.layers->parameters()) {
        parameter.zero_();
      }
    }
    checkpoint::load_checkpoint_in_model(*loaded.layers, saved);
    const auto values = loaded.layers->named_parameters();
    for (const auto& item : expected.layers->named_parameters()) {
      EXPECT_TRUE(at::equal(values[item.key()], item.value())) << item.key();
    }
  }
}

TEST(MeshPairs, IndicesWithinASequenceScopeAreNoPositions) {
  accelerated_ranks(2, {.mesh = MeshShape{.cp = 2}}, [](Accelerator& accelerator) {
    const expert_parallel::RouterOptions options{
        .k = 1,
        .norm_topk_prob = false,
        .capacity_factor = 1,
        .min_capacity = 1,
        .drop_policy = expert_parallel::DropPolicy::kPosition};
    const at::Tensor logits = at::tensor({3, 1, 2, 1, 4, 1, 1, 5}, at::kDouble).view({4, 2});
    const at::Tensor falling = at::tensor({3, 2, 1, 0}, at::kLong);
    const auto results = [&] {
      return std::vector<at::Tensor>{
          expert_parallel::route(logits, options).kept,
          at::argsort(falling),
          std::get<1>(at::sort(falling)),
          at::one_hot(falling, 4)};
    };
    const std::vector<at::Tensor> expected = results();
    at::Tensor tokens = at::zeros({3, 8}, at::kLong);  // Each process has 4 positions of each.
    const SequenceScope scope(accelerator.mesh(), {{tokens}});
    EXPECT_FALSE(at::equal(at::arange(4), falling.flip(0)));
    const std::vector<at::Tensor> within = results();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(within[i], expected[i])) << i;
    }
    at::scaled_dot_product_attention(
        at::ones({1, 1, 4, 2}), at::ones({1, 1, 4, 2}), at::ones({1, 1, 4, 2}));
  });
}

std::string error_of_prepare(
    const Job& job, const std::function<void(AcceleratorOptions&)>& change = nullptr) {
  AcceleratorOptions options = options_of(job);
  if (change) {
    change(options);
  }
  std::string message;
  accelerated_ranks(job.world, options, [&](Accelerator& accelerator) {
    Model model = make_model(accelerator.mesh().experts);
    const std::string error = error_of<ConfigError>([&] {
      accelerator.prepare(model.layers, optim::LAMB(model.layers->parameters(), {.lr = 0.01}));
    });
    if (accelerator.process_index() == 0) {
      message = error;
    }
  });
  return message;
}

TEST(MeshPairs, WhatTheyExcludeIsAnError) {
  EXPECT_THAT(
      error_of_prepare({.world = 2, .mesh = {.ep = 2}, .zero_stage = 1}),
      HasSubstr("ZeRO shards experts over other processes than the other parameters"));
  EXPECT_THAT(
      error_of_prepare(
          {.world = 4, .mesh = {.tp = 2, .ep = 2}},
          [](AcceleratorOptions& options) {
            options.tensor_parallel.plan.push_back(
                {"2.moe.experts.*.w1", TensorStyle::kColwiseGather});
          }),
      HasSubstr("the plan of tensor parallelism divides the expert parameter 2.moe.experts."));
}

}  // namespace
}  // namespace lockstep::mesh_pairs
