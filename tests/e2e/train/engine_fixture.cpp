// SPDX-License-Identifier: Apache-2.0
//
// DeepSpeed's loop: init_distributed, initialize, engine(batch), backward, step, checkpoints.
#include <cstdio>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "lockstep/lockstep.h"
#include "tests/nets.h"

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

int train(const Options& options) {
  const lockstep::Connected job = lockstep::init_distributed();
  lockstep::Group all_ranks = job.group;
  const torch::Tensor sum = all_ranks.all_reduce(torch::ones({1})).wait();
  lockstep::init_distributed();  // Libraries call it again.

  torch::manual_seed(1);
  // Large enough for each rank to own a shard of it.
  lockstep::test::TwoLayerNet net(
      lockstep::test::TwoLayerOptions{.in = 8, .hidden = 64, .out = 4, .scale = 0.1});
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
