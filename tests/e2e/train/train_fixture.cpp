// SPDX-License-Identifier: Apache-2.0
//
// Trains the demo's network by SGD and writes each process's final parameters. Tests compare many
// processes, many threads, and one process that accumulates.
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <torch/torch.h>

#include "examples/fashion_mnist/net.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/lockstep.h"

namespace {

namespace data = lockstep::data;
namespace fs = std::filesystem;
using examples::Net;

struct Options {
  int64_t steps = 50;
  int64_t batch_size = 16;
  int64_t slices = 1;  ///< One process: batches that are accumulated before each update.
  int threads = 0;     ///< Number of ranks as threads; 0: ranks are processes.
  double dropout = 0;  ///< Draws random numbers in every step.
  int64_t save_at = 0;
  bool resume = false;
  bool forever = false;
  std::string end = "return";
  fs::path output;
};

/// Returns a network with the same weights in every world, and then seeds the generator by rank.
/// Ranks that are threads share a generator, so the mutex keeps another rank from seeding it.
Net same_net(int rank) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  torch::manual_seed(1);
  Net net;
  torch::manual_seed(100 + rank);
  return net;
}

void train(lockstep::Accelerator& accelerator, const Options& options, const std::string& file) {
  Net net = same_net(accelerator.process_index());
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      // A rounding error that moves an activation across ReLU's kink grows large. With a step of
      // 0.05 some seeds have one within 50 steps.
      torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.02)),
      data::Loader(
          data::fashion_mnist(data::FashionMnistSplit::kTest),
          {.batch_size = options.batch_size, .shuffle = true}));
  if (options.resume) {
    accelerator.load_state(options.output / "checkpoint");
  }
  int64_t slice = 0;
  for (int64_t epoch = 0; epoch < 1000 && optimizer.steps() < options.steps; ++epoch) {
    for (auto& batch : loader) {
      const auto x = torch::dropout(batch.data, options.dropout, /*train=*/true);
      const auto loss = torch::cross_entropy_loss(model->forward(x), batch.target);
      accelerator.backward(loss / options.slices);
      if (++slice % options.slices != 0) {
        continue;
      }
      optimizer.step();
      optimizer.zero_grad();
      if (options.forever && optimizer.steps() == 5) {
        std::printf("ready %d %d\n", accelerator.process_index(), static_cast<int>(::getpid()));
        std::fflush(stdout);
      }
      if (optimizer.steps() == options.save_at) {
        accelerator.save_state(options.output / "checkpoint");
      }
      if (optimizer.steps() == options.steps) {
        break;
      }
    }
  }
  if (!options.output.empty()) {
    lockstep::checkpoint::write_safetensors(options.output / file, lockstep::parameters_of(*net));
  }
}

int run(const Options& options) {
  if (options.threads > 0) {
    lockstep::accelerated_ranks(options.threads, {}, [&](lockstep::Accelerator& accelerator) {
      train(accelerator, options, "thread_" + std::to_string(accelerator.process_index()));
    });
    return 0;
  }
  lockstep::Accelerator accelerator;
  if (options.steps > 0) {
    train(accelerator, options, "rank_" + std::to_string(accelerator.process_index()));
  }
  if (options.end == "exit") {
    std::exit(0);
  }
  if (options.end == "throw" && accelerator.is_last_process()) {
    throw std::runtime_error("thrown on purpose");
  }
  if (options.end == "reduce") {
    std::ignore = accelerator.reduce(torch::ones({4}));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains the demo's network for the tests.");
  app.add_option("--steps", options.steps);
  app.add_option("--batch-size", options.batch_size);
  app.add_option("--slices", options.slices);
  app.add_option("--threads", options.threads);
  app.add_option("--dropout", options.dropout);
  app.add_option("--save-at", options.save_at);
  app.add_flag("--resume", options.resume);
  app.add_flag("--forever", options.forever);
  app.add_option("--end", options.end);
  app.add_option("--output", options.output);
  CLI11_PARSE(app, argc, argv);
  if (options.forever) {
    options.steps = 1 << 30;
  }
  return lockstep::run_main([&] { return run(options); });
}
