// SPDX-License-Identifier: Apache-2.0
//
// Trains a small GPT on any mesh of processes. The losses are those of one process:
//
//   build/release/bin/gpt
//   build/release/bin/lockstep launch -n 2 build/release/bin/gpt
//   build/release/bin/lockstep launch -n 2 --mesh tp=2 build/release/bin/gpt
//   build/release/bin/lockstep launch -n 4 --mesh tp=2 build/release/bin/gpt --zero 3
//   build/release/bin/lockstep launch -n 2 --mesh cp=2 build/release/bin/gpt
//   build/release/bin/lockstep launch -n 4 --mesh pp=2 build/release/bin/gpt
//
// The text is made up: word t+1 is 3 times word t plus 1 (modulo the number of words), but for one
// word in eight. After 60 updates the loss is near the entropy of that, 0.89.
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include <torch/torch.h>

#include "examples/common/options.h"
#include "examples/gpt/model.h"
#include "lockstep/base/env.h"
#include "lockstep/lockstep.h"
#include "lockstep/pipeline/pipeline_module.h"

namespace {

using examples::Gpt;
using examples::GptOptions;
using lockstep::TensorStyle;

struct Options {
  GptOptions model;
  int64_t steps = 60;
  int64_t batch_size = 16;  ///< Of all processes together.
  uint64_t seed = 42;
  int micro_batches = 4;  ///< In which a pipeline computes a batch.
  int zero = 0;           ///< ZeRO's stage; 0: data parallel.
  double lr = 2e-3;
  bool sequence_parallel = false;
};

/// Returns `rows` texts of `length` words.
torch::Tensor made_up_texts(int64_t rows, int64_t length, int64_t words) {
  const torch::Generator drawing = at::detail::createCPUGenerator(7);
  torch::Tensor texts = torch::randint(words, {rows, length}, drawing, torch::kLong);
  const torch::Tensor follows = torch::rand({rows, length}, drawing) > 0.125;
  for (int64_t i = 1; i < length; ++i) {
    const torch::Tensor next = (texts.select(1, i - 1) * 3 + 1).remainder(words);
    texts.select(1, i).copy_(torch::where(follows.select(1, i), next, texts.select(1, i)));
  }
  return texts;
}

/// The layers that the processes of a tp line divide, by their numbers.
lockstep::TensorPlan plan_of_pipeline(int64_t blocks) {
  return {
      {"0.words", TensorStyle::kEmbedding},
      {"*.qkv", TensorStyle::kColwise, {1, 1, 1}},
      {"*.out", TensorStyle::kRowwise},
      {"*.up", TensorStyle::kColwise},
      {"*.down", TensorStyle::kRowwise},
      {std::to_string(blocks + 2), TensorStyle::kColwise}};  // The head.
}

/// The layers that the processes of a tp line divide.
lockstep::TensorPlan plan(bool sequence_parallel) {
  lockstep::TensorPlan rules = {
      {"words", TensorStyle::kEmbedding},
      {"blocks.*.qkv", TensorStyle::kColwise, {1, 1, 1}},
      {"blocks.*.out", TensorStyle::kRowwise},
      {"blocks.*.up", TensorStyle::kColwise},
      {"blocks.*.down", TensorStyle::kRowwise},
      {"head", TensorStyle::kColwise}};  // The loss needs no full scores.
  if (sequence_parallel) {
    for (const char* modules : {"positions", "blocks.*.norm1", "blocks.*.norm2", "norm"}) {
      rules.push_back({modules, TensorStyle::kSequence});
    }
  }
  return rules;
}

/// Trains `net`, whose loss of a batch `loss_of` computes.
template <typename Model, typename LossOf>
void train_model(
    lockstep::Accelerator& accelerator,
    const Options& options,
    const torch::Tensor& texts,
    Model net,
    const LossOf& loss_of) {
  const int64_t batch_size = options.batch_size / accelerator.mesh().data.size();
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      lockstep::optim::AdamW(net->parameters(), {.lr = options.lr}),
      lockstep::data::Loader(
          lockstep::data::TensorDataset(
              texts.slice(1, 0, options.model.context), texts.slice(1, 1)),
          {.batch_size = batch_size, .shuffle = true, .seed = options.seed}));
  while (optimizer.steps() < options.steps) {
    for (auto& batch : loader) {
      // With cp or sp a process has a part of each text within this scope.
      const lockstep::SequenceScope scope(accelerator.mesh(), {{batch.data}, {batch.target}});
      const int64_t count = batch.target.numel();
      const torch::Tensor loss =
          scope.mean(loss_of(batch.data, batch.target) * count, torch::tensor(count));
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model->parameters(), 1);
      optimizer.step();
      optimizer.zero_grad();
      if (optimizer.steps() % 20 == 0) {
        char line[80];
        std::snprintf(
            line,
            sizeof(line),
            "step %3ld: loss %.4f",
            static_cast<long>(optimizer.steps()),
            accelerator.reduce(loss, lockstep::ReduceOp::kAvg).template item<double>());
        accelerator.print(line);
      }
      if (optimizer.steps() == options.steps) {
        break;
      }
    }
  }
  accelerator.end_training();
}

int train(const Options& options) {
  torch::manual_seed(options.seed);
  Gpt net(options.model);
  const torch::Tensor texts =
      made_up_texts(/*rows=*/512, options.model.context + 1, options.model.words);
  const bool is_cut = lockstep::mesh_from_environment(lockstep::Environment::process()).pp > 1;
  // prepare() compares it before and after it divides the model; a process has no full pipeline.
  std::function<torch::Tensor()> example;
  if (!is_cut) {
    example = [&] { return net->forward(texts.slice(0, 0, 2).slice(1, 1)); };
  }
  lockstep::Accelerator accelerator(
      {.tensor_parallel =
           {.plan =
                is_cut ? plan_of_pipeline(options.model.layers) : plan(options.sequence_parallel),
            .sequence_parallel = options.sequence_parallel,
            .example = example,
            .without_example = is_cut},
       .zero = options.zero > 0 ? std::optional(lockstep::ZeroPlugin{.stage = options.zero})
                                : std::nullopt});
  const auto loss_of = [&](const torch::Tensor& scores, const torch::Tensor& next) {
    return lockstep::vocabulary_parallel_cross_entropy(
        scores.flatten(0, 1), next.flatten(), accelerator.mesh().tensor);
  };
  if (is_cut) {
    lockstep::pipeline::PipelineModule stage(
        lockstep::pipeline::layers_of(net->sequential()),
        loss_of,
        accelerator.mesh(),
        lockstep::pipeline::PipelineOptions{.micro_batches = options.micro_batches});
    net = Gpt(nullptr);  // A process keeps its own layers only.
    train_model(accelerator, options, texts, stage, [&](const auto& words, const auto& next) {
      return stage->forward(words, next);
    });
  } else {
    train_model(accelerator, options, texts, net, [&](const auto& words, const auto& next) {
      return loss_of(net->forward(words), next);
    });
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small GPT on any mesh of processes.", "gpt");
  app.footer(
      "Examples:\n"
      "  gpt\n"
      "  lockstep launch -n 2 --mesh tp=2 gpt\n"
      "  lockstep launch -n 4 --mesh tp=2 gpt --zero 3 --sequence-parallel\n"
      "  lockstep launch -n 2 --mesh cp=2 gpt\n"
      "  lockstep launch -n 2 --mesh pp=2 gpt");
  app.add_option("--steps", options.steps, "Updates")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option(
         "--batch-size", options.batch_size, "Texts in an update, of all processes together")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of weights and order")->capture_default_str();
  app.add_option(
         "--micro-batches",
         options.micro_batches,
         "Parts of a batch that a pipeline computes at a time, with a mesh that has pp")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option("--zero", options.zero, "Stage of ZeRO; 0: data parallel")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "Learning rate of AdamW")
      ->check(examples::positive_number())
      ->capture_default_str();
  app.add_option("--layers", options.model.layers, "Blocks of the transformer")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option("--heads", options.model.heads, "Attention heads of a block")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option("--head-size", options.model.head_size, "Size of a head")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option("--dropout", options.model.dropout, "Part of the values that a block drops")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
  app.add_option("--context", options.model.context, "Words of a text")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_flag(
      "--sequence-parallel",
      options.sequence_parallel,
      "With a mesh that has tp: divide norms and residuals along the sequence");
  return lockstep::run_main([&] {
    if (const auto code = examples::parse(app, argc, argv)) {
      return *code;
    }
    return train(options);
  });
}
