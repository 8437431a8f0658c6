// SPDX-License-Identifier: Apache-2.0
//
// Trains a small transformer to write like Shakespeare, character by character, on one process or
// many:
//
//   build/release/bin/char_lm
//   build/release/bin/lockstep launch -n 2 build/release/bin/char_lm
//
// Shows accumulation, bf16 (where the CPU has instructions for it), a cosine schedule, clipping,
// evaluation and checkpoints, and prints generated text at the end. The second command takes less
// than four minutes on 2 cores. It prints "step 400: 3.09 bits a character on held-out text"
// (within 0.05; uniform guessing has 6.5), and text in the form of a play.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "examples/char_lm/model.h"
#include "examples/char_lm/text.h"
#include "examples/common/options.h"
#include "examples/common/resume.h"
#include "lockstep/lockstep.h"

namespace {

namespace data = lockstep::data;
namespace optim = lockstep::optim;
namespace schedule = lockstep::schedule;
using Clock = std::chrono::steady_clock;
using examples::CharModel;
using examples::Text;
using examples::TextChunks;

struct Options {
  examples::CommonOptions common{
      .epochs = 100,
      .steps = 400,
      .batch_size = 16,
      .accumulation_steps = 2,
      .output = "runs/char_lm"};
  examples::ModelOptions model;
  double lr = 2e-3;
  double max_norm = 1;
  int64_t warmup_steps = 40;
  int64_t evaluate_every = 100;
  std::string precision = lockstep::cpu_has_bf16() ? "bf16" : "no";
  std::string text = examples::default_text().string();
  std::string prompt = "ROMEO.\n";
  int64_t sample_length = 400;
  int zero_plus_plus = 0;  ///< Processes of a host for ZeRO++; 0: plain stages.
};

at::Tensor loss_of(CharModel& model, const data::Batch& batch) {
  const auto scores = model->forward(batch.data);
  return torch::cross_entropy_loss(scores.flatten(0, 1), batch.target.flatten());
}

/// Returns the mean loss on the held-out text, the same on every process.
double evaluate(
    lockstep::Accelerator& accelerator, CharModel& model, data::Loader<TextChunks>& held_out) {
  const torch::NoGradGuard no_grad;
  model->eval();
  at::Tensor losses = torch::zeros({0}, accelerator.device());
  for (auto& batch : held_out) {
    auto cast = accelerator.autocast();
    const auto scores = model->forward(batch.data).to(torch::kFloat);
    const auto each =
        torch::cross_entropy_loss(scores.transpose(1, 2), batch.target, {}, at::Reduction::None);
    losses = torch::cat({losses, accelerator.gather_for_metrics(each.mean(1))});
  }
  model->train();
  return losses.mean().item<double>();
}

/// Generates `length` characters after `prompt`, sampled from the model's distribution.
std::string generate_text(
    CharModel& model, const Text& text, const std::string& prompt, int64_t length) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const at::Device device = model->characters->weight.device();
  auto tokens = text.encode(prompt).to(device, torch::kLong).unsqueeze(0);
  for (int64_t i = 0; i < length; ++i) {
    const int64_t seen = std::min(tokens.size(1), model->options.context);
    const auto scores = model->forward(tokens.slice(1, tokens.size(1) - seen));
    const auto next = torch::multinomial(torch::softmax(scores.select(1, seen - 1) / 0.8, 1), 1);
    tokens = torch::cat({tokens, next}, 1);
  }
  return text.decode(tokens[0].cpu());
}

std::optional<lockstep::ZeroPlugin> zero_of(const Options& options) {
  if (options.common.zero == 0 && options.zero_plus_plus == 0) {
    return std::nullopt;
  }
  const bool plus_plus = options.zero_plus_plus > 0;
  return lockstep::ZeroPlugin{
      .stage = options.common.zero,
      .zero_quantized_weights = plus_plus,
      .zero_quantized_gradients = plus_plus,
      .zero_hpz_partition_size = options.zero_plus_plus};
}

int train(const Options& options) {
  lockstep::Accelerator accelerator(
      {.mixed_precision = lockstep::parse_precision(options.precision),
       .gradient_accumulation_steps = options.common.accumulation_steps,
       .log_with = {"tensorboard", "jsonl"},
       .project_dir = options.common.output,
       .zero = zero_of(options)});
  examples::check_output(options.common.output, options.common.resume);
  const Text text(options.text);
  const int64_t characters = text.tokens().size(0);
  const int64_t cut = characters * 19 / 20;

  // Dropout differs between processes; weights do not, since prepare() broadcasts those of rank 0.
  lockstep::data::set_seed(
      options.common.seed, /*device_specific=*/true, accelerator.process_index());
  examples::ModelOptions shape = options.model;
  shape.vocabulary = text.vocabulary();
  CharModel net(shape);
  const data::LoaderOptions loading{
      .batch_size = options.common.batch_size, .shuffle = true, .seed = options.common.seed};
  auto [model, optimizer, scheduler, train_loader, held_out] = accelerator.prepare(
      net,
      optim::AdamW(net->parameters(), {.lr = options.lr, .weight_decay = 0.1}),
      schedule::warmup_cosine(
          {.warmup_steps = options.warmup_steps,
           .total_steps = options.common.steps,
           .min_lr_ratio = 0.1}),
      data::Loader(TextChunks(text.tokens(), 0, cut, shape.context), loading),
      data::Loader(TextChunks(text.tokens(), cut, characters, shape.context), {.batch_size = 32}));
  examples::resume_if(options.common.resume, accelerator);
  accelerator.init_trackers(
      {{"lr", options.lr},
       {"batch_size", options.common.batch_size},
       {"accumulation_steps", options.common.accumulation_steps},
       {"precision", options.precision},
       {"processes", accelerator.num_processes()}});
  accelerator.print(scheduler.describe());

  const auto start = Clock::now();
  const int64_t steps_before = optimizer.steps();
  double held_out_loss = NAN;
  for (const int64_t epoch : accelerator.epochs(options.common.epochs)) {
    if (optimizer.steps() >= options.common.steps) {
      break;
    }
    auto progress = accelerator.progress(train_loader, "epoch " + std::to_string(epoch + 1));
    for (auto& batch : progress) {
      auto micro_step = accelerator.accumulate(model);
      at::Tensor loss;
      {
        auto cast = accelerator.autocast();
        loss = loss_of(model, batch);
      }
      accelerator.backward(loss);
      const auto norm = accelerator.clip_grad_norm_(model->parameters(), options.max_norm);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      if (!accelerator.sync_gradients()) {
        continue;
      }
      if (optimizer.steps() % 20 == 0) {
        const double mean = accelerator.reduce(loss, lockstep::ReduceOp::kAvg).item<double>();
        accelerator.log(
            {{"train/loss", mean},
             {"train/gradient_norm", norm.item<double>()},
             {"train/lr", scheduler.get_last_lr().front()}});
        progress.set_value("loss", mean);
      }
      const bool last = optimizer.steps() == options.common.steps;
      if (last || optimizer.steps() % options.evaluate_every == 0) {
        held_out_loss = evaluate(accelerator, model, held_out);
        accelerator.log({{"held_back/loss", held_out_loss}});
        accelerator.save_state();
        char line[80];
        std::snprintf(
            line,
            sizeof(line),
            "step %ld: %.3f bits a character on held-out text",
            static_cast<long>(optimizer.steps()),
            held_out_loss / std::log(2.0));
        accelerator.print(line);
      }
      if (last) {
        break;
      }
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  accelerator.end_training();
  if (std::isnan(held_out_loss)) {
    accelerator.print("the checkpoint has all --steps already; give a larger number to continue");
    held_out_loss = evaluate(accelerator, model, held_out);
  }

  // All processes generate, since with --zero 3 no process has all weights.
  const std::string written =
      options.sample_length > 0 ? generate_text(model, text, options.prompt, options.sample_length)
                                : "";
  if (accelerator.is_main_process()) {
    const auto seen = static_cast<double>(
        (optimizer.steps() - steps_before) * options.common.batch_size *
        options.common.accumulation_steps * accelerator.num_processes() * shape.context);
    if (options.sample_length > 0) {
      accelerator.print("\n" + written);
    }
    if (options.common.json) {
      accelerator.print(nlohmann::json{
          {"loss", held_out_loss},
          {"precision", options.precision},
          {"steps", optimizer.steps()},
          {"steps_now", optimizer.steps() - steps_before},
          {"characters_per_second", seconds > 0 ? seen / seconds : 0.0}}
                            .dump());
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Trains a small transformer to write like Shakespeare.\n\nExamples:\n"
      "  char_lm --steps 200\n"
      "  lockstep launch -n 2 char_lm --output runs/two\n"
      "  lockstep launch -n 2 char_lm --output runs/two --steps 800 --resume\n"
      "  lockstep launch -n 2 char_lm --zero 3 --output runs/sharded\n"
      "  lockstep launch -n 4 char_lm --zero 3 --zero-plus-plus 2 --output runs/rounded\n"
      "  char_lm --data my.txt --prompt 'Once upon a time' --layers 6 --width 192");
  examples::add_common_options(app, options.common);
  app.add_option(
         "--zero-plus-plus",
         options.zero_plus_plus,
         "Processes of a host for ZeRO++, with --zero 3; 0: no ZeRO++")
      ->check(examples::non_negative_integer())
      ->capture_default_str();
  app.add_option("--lr", options.lr, "Highest learning rate of AdamW")
      ->check(examples::positive_number())
      ->capture_default_str();
  app.add_option("--warmup", options.warmup_steps, "Updates of the learning rate's warm-up")
      ->check(examples::non_negative_integer())
      ->capture_default_str();
  app.add_option("--clip", options.max_norm, "Largest norm of the gradients")
      ->check(examples::positive_number())
      ->capture_default_str();
  app.add_option("--evaluate-every", options.evaluate_every, "Updates between evaluations")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option(
         "--precision",
         options.precision,
         "no, bf16 or fp16; the default is bf16 if the CPU has instructions for it")
      ->capture_default_str();
  app.add_option("--layers", options.model.layers, "Blocks of the transformer")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option("--heads", options.model.heads, "Attention heads of a block")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option("--width", options.model.width, "Width of the model; a multiple of --heads")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option("--context", options.model.context, "Context length in characters")
      ->check(examples::positive_integer())
      ->capture_default_str();
  app.add_option("--dropout", options.model.dropout, "Probability of dropout")
      ->check(examples::number_between(0, 0.9))
      ->capture_default_str();
  app.add_option("--data", options.text, "A text file, or a folder with *_gut.txt")
      ->capture_default_str();
  app.add_option("--prompt", options.prompt, "The start of the generated text");
  app.add_option("--sample", options.sample_length, "Characters to generate at the end")
      ->check(examples::non_negative_integer())
      ->capture_default_str();
  return lockstep::run_main([&] {
    if (const auto code = examples::parse(app, argc, argv)) {
      return *code;
    }
    if (options.model.width % options.model.heads != 0) {
      throw lockstep::ConfigError(
          "char_lm", "--width is not a multiple of --heads; expected a multiple");
    }
    return train(options);
  });
}
