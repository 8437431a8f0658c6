// SPDX-License-Identifier: Apache-2.0
//
// A rank of bench/step.py: trains a model on one resident batch and prints, from rank 0, what a
// step takes. The same models as in step_peers.py.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "examples/char_lm/model.h"
#include "examples/fashion_mnist/net.h"
#include "lockstep/lockstep.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string model = "mlp";
  bool alone = false;
  bool loader = false;  ///< cnn only: batches of Fashion-MNIST from a loader, not one resident one.
  int64_t steps = 100;
  int64_t accumulate = 1;
};

struct Batch {
  at::Tensor input, target;
};

/// Runs `step` a few times to warm up, then `steps` times; us of each in the mean, on the slowest
/// rank. Ranks that are alone do not talk, and each says its own.
template <typename Step>
double microseconds(const Options& options, const Step& step) {
  const int64_t warm_up = std::clamp<int64_t>(options.steps / 5, 3, 50);
  for (int64_t i = 0; i < warm_up; ++i) {
    step();
  }
  const auto start = Clock::now();
  for (int64_t i = 0; i < options.steps; ++i) {
    step();
  }
  return std::chrono::duration<double>(Clock::now() - start).count() * 1e6 /
         static_cast<double>(options.steps);
}

/// One process or several, each on its share: as the example trains.
double train_from_loader(const Options& options) {
  lockstep::Accelerator accelerator;
  examples::Net net;
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      lockstep::optim::AdamW(net->parameters(), {.lr = 1e-4}),
      lockstep::data::Loader(
          lockstep::data::fashion_mnist(lockstep::data::FashionMnistSplit::kTrain),
          lockstep::data::LoaderOptions{.batch_size = 64, .shuffle = true}));
  auto batches = loader.begin();
  const double own = microseconds(options, [&] {
    if (batches == loader.end()) {
      batches = loader.begin();
    }
    auto& batch = *batches;
    auto micro_step = accelerator.accumulate(model);
    accelerator.backward(at::cross_entropy_loss(model->forward(batch.data), batch.target));
    optimizer.step();
    optimizer.zero_grad();
    ++batches;
  });
  return accelerator.reduce(at::full({}, own, at::kDouble), lockstep::ReduceOp::kMax)
      .item<double>();
}

template <typename Model, typename Loss>
double train(const Options& options, Model net, const Batch& batch, const Loss& loss_of) {
  lockstep::optim::AdamW plain(net->parameters(), {.lr = 1e-4});
  if (options.alone) {
    return microseconds(options, [&] {
      for (int64_t i = 0; i < options.accumulate; ++i) {
        loss_of(net->forward(batch.input), batch.target).backward();
      }
      plain.step();
      plain.zero_grad();
    });
  }
  lockstep::Accelerator accelerator({.gradient_accumulation_steps = options.accumulate});
  auto [model, optimizer] = accelerator.prepare(net, std::move(plain));
  const double own = microseconds(options, [&] {
    for (int64_t i = 0; i < options.accumulate; ++i) {
      auto micro_step = accelerator.accumulate(model);
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  return accelerator.reduce(at::full({}, own, at::kDouble), lockstep::ReduceOp::kMax)
      .template item<double>();
}

double measure(const Options& options) {
  const auto cross_entropy = [](const at::Tensor& scores, const at::Tensor& target) {
    return at::cross_entropy_loss(scores.flatten(0, -2), target.flatten());
  };
  if (options.model == "mlp") {
    torch::nn::Sequential net(
        torch::nn::Linear(784, 256), torch::nn::ReLU(), torch::nn::Linear(256, 10));
    return train(
        options, net, {at::randn({64, 784}), at::randint(10, {64}, at::kLong)}, cross_entropy);
  }
  if (options.model == "cnn" && options.loader) {
    return train_from_loader(options);
  }
  if (options.model == "cnn") {
    return train(
        options,
        examples::Net(),
        {at::randn({64, 1, 28, 28}), at::randint(10, {64}, at::kLong)},
        cross_entropy);
  }
  if (options.model == "lm") {
    const examples::ModelOptions sizes{
        .vocabulary = 256, .context = 128, .layers = 12, .heads = 8, .width = 256, .dropout = 0};
    const at::Tensor text = at::randint(256, {8, 128}, at::kLong);
    return train(options, examples::CharModel(sizes), {text, text}, cross_entropy);
  }
  throw lockstep::ConfigError("step_bench", "no such model: " + options.model);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app("one rank of bench/step.py");
    Options options;
    app.add_option("--model", options.model);
    app.add_flag("--alone", options.alone);
    app.add_flag("--loader", options.loader);
    app.add_option("--steps", options.steps);
    app.add_option("--accumulate", options.accumulate);
    CLI11_PARSE(app, argc, argv);
    at::set_num_threads(1);
    torch::manual_seed(0);
    const double us = measure(options);
    if (lockstep::world_from_environment(lockstep::Environment::process()).rank == 0) {
      std::cout << nlohmann::json{{"us", us}}.dump() + "\n" << std::flush;
    }
    return 0;
  });
}
