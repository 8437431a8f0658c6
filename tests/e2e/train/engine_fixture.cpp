// SPDX-License-Identifier: Apache-2.0
//
// The loop of the document that Lockstep comes from, in C++: init_distributed, initialize,
// engine(batch), backward, step, checkpoints.
#include <cstdio>

#include <CLI/CLI.hpp>

#include <torch/torch.h>

#include "lockstep/lockstep.h"

namespace {

namespace data = lockstep::data;
namespace fs = std::filesystem;

struct Options {
  fs::path config;
  fs::path checkpoints;
  int64_t updates = 8;
  bool resume = false;
  bool summary = false;
};

struct NetImpl : torch::nn::Module {
  // Large enough for each rank to have a part of it.
  NetImpl() {
    hidden = register_module("hidden", torch::nn::Linear(8, 64));
    linear = register_module("linear", torch::nn::Linear(64, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) { return linear(torch::relu(hidden(x))); }
  torch::nn::Linear hidden{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Net);

int train(const Options& options) {
  const lockstep::Connected job = lockstep::init_distributed();
  lockstep::Group everybody = job.group;
  const torch::Tensor sum = everybody.all_reduce(torch::ones({1})).wait();
  lockstep::init_distributed();  // As libraries do, to be sure.

  torch::manual_seed(1);
  Net net;
  const auto x = torch::randn({256, 8});
  auto [engine, optimizer, loader, scheduler] = lockstep::initialize(
      net, {.config = options.config}, data::TensorDataset(x, x.narrow(1, 0, 4).argmax(1)));
  int64_t step = 0;
  if (options.resume) {
    const auto [path, client_sd] = engine.load_checkpoint(options.checkpoints);
    step = client_sd.at("step").get<int64_t>();
  }
  double loss_now = 0;
  while (step < options.updates) {
    for (auto& batch : loader) {
      const auto loss = torch::cross_entropy_loss(engine(batch.data), batch.target);
      engine.backward(loss);
      engine.step();
      loss_now = loss.item<double>();
      if (++step == options.updates) {
        break;
      }
    }
  }
  engine.save_checkpoint(
      options.checkpoints, "after_" + std::to_string(step), {.client_sd = {{"step", step}}});
  if (options.summary) {
    engine.log_summary();
  }
  engine.accelerator().on_main_process([&] {
    std::printf(
        "ranks %d sum %d steps %d loss %.4f scale %g\n",
        job.world.size,
        static_cast<int>(sum.item<double>()),
        static_cast<int>(engine.global_steps()),
        loss_now,
        engine.loss_scale());
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains by a ds_config.json for the tests.");
  app.add_option("--config", options.config);
  app.add_option("--checkpoints", options.checkpoints);
  app.add_option("--updates", options.updates);
  app.add_flag("--resume", options.resume);
  app.add_flag("--summary", options.summary);
  CLI11_PARSE(app, argc, argv);
  return lockstep::run_main([&] { return train(options); });
}
