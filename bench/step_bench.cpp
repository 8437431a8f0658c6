// SPDX-License-Identifier: Apache-2.0
// Trains a model as a rank of bench/step.py, bench/loader.py and bench/gpu.py. Rank 0 prints the
// time of a step. step_peers.py does the same.
#include <fstream>
#include <iostream>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include "bench/models.h"
#include "bench/timing.h"
#include "examples/fashion_mnist/net.h"
#include "lockstep/base/memory/keep_memory.h"
#include "lockstep/lockstep.h"

namespace {

struct Options {
  std::string model = "mlp";
  bool alone = false;
  bool loader = false;  ///< cnn only: Fashion-MNIST from a loader, not one resident batch.
  bool shared = false;  ///< Shared parameters.
  int zero = 0;         ///< ZeRO's stage; 0: none.
  std::string offload_optimizer;  ///< "cpu", or a folder for files.
  std::string offload_param;
  bool super_offload = false;
  std::string precision = "no";
  int64_t steps = 100;
  int64_t accumulate = 1;
  std::string trace;  ///< A folder for a Kineto trace of three more steps.
};

struct Batch {
  at::Tensor input, target;
};

lockstep::ZeroPlugin zero_plugin(const Options& options) {
  lockstep::ZeroPlugin plugin{.stage = options.zero};
  const auto set = [](const std::string& where, auto& offload) {
    if (where == "cpu") {
      offload.device = lockstep::OffloadDevice::kCpu;
    } else if (!where.empty()) {
      offload.device = lockstep::OffloadDevice::kNvme;
      offload.nvme_path = where;
    }
  };
  set(options.offload_optimizer, plugin.offload_optimizer);
  set(options.offload_param, plugin.offload_param);
  plugin.offload_optimizer.super_offload = options.super_offload;
  plugin.offload_param.max_in_cpu = 0;
  return plugin;
}

double largest(lockstep::Accelerator& accelerator, double own) {
  return accelerator.reduce(at::full({}, own, at::kDouble), lockstep::ReduceOp::kMax)
      .item<double>();
}

/// Returns the peak resident memory of this process.
double own_peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) {
      return std::stod(line.substr(6)) / 1024;
    }
  }
  return 0;
}

/// Holds the time of the slowest rank, and the largest peak memory of a rank.
struct Figures {
  double us, peak_mib;
};

Figures of_all(lockstep::Accelerator& accelerator, double us) {
  return {largest(accelerator, us), largest(accelerator, own_peak_mib())};
}

/// Trains like the example, with one or several processes.
Figures train_from_loader(const Options& options) {
  lockstep::Accelerator accelerator;
  examples::Net net;
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      lockstep::optim::AdamW(net->parameters(), {.lr = 1e-4}),
      lockstep::data::Loader(
          lockstep::data::fashion_mnist(lockstep::data::FashionMnistSplit::kTrain),
          lockstep::data::LoaderOptions{.batch_size = 64, .shuffle = true}));
  auto batches = loader.begin();
  const auto step = [&] {
    if (batches == loader.end()) {
      batches = loader.begin();
    }
    auto& batch = *batches;
    auto micro_step = accelerator.accumulate(model);
    accelerator.backward(at::cross_entropy_loss(model->forward(batch.data), batch.target));
    optimizer.step();
    optimizer.zero_grad();
    ++batches;
  };
  return of_all(accelerator, bench::step_microseconds(step, options.steps));
}

template <typename Model, typename Loss>
Figures train(const Options& options, Model net, const Batch& batch, const Loss& loss_of) {
  lockstep::optim::AdamW plain(net->parameters(), {.lr = 1e-4});
  if (options.alone) {
    const auto step = [&] {
      for (int64_t i = 0; i < options.accumulate; ++i) {
        loss_of(net->forward(batch.input), batch.target).backward();
      }
      plain.step();
      plain.zero_grad();
    };
    return {bench::step_microseconds(step, options.steps), own_peak_mib()};
  }
  lockstep::Accelerator accelerator(
      {.mixed_precision = lockstep::parse_precision(options.precision),
       .gradient_accumulation_steps = options.accumulate,
       .expect_prepared_loader = false,
       .zero = options.zero == 0 ? std::nullopt : std::optional(zero_plugin(options)),
       .shared_parameters = options.shared});
  auto [model, optimizer] = accelerator.prepare(net, std::move(plain));
  const at::Device device = accelerator.device();
  const Batch here{batch.input.to(device), batch.target.to(device)};
  const auto step = [&] {
    for (int64_t i = 0; i < options.accumulate; ++i) {
      auto micro_step = accelerator.accumulate(model);
      at::Tensor loss;
      {
        auto cast = accelerator.autocast();
        loss = loss_of(model->forward(here.input), here.target);
      }
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  const auto finish = [&] {
    if (!device.is_cpu()) {
      at::accelerator::synchronizeDevice(device.index());
    }
  };
  const Figures figures =
      of_all(accelerator, bench::step_microseconds(step, options.steps, finish));
  if (!options.trace.empty()) {
    const auto profile = accelerator.profile({.output_trace_dir = options.trace});
    bench::seconds_of(step, 3);
    finish();
    profile->finish();
  }
  return figures;
}

Figures measure(const Options& options) {
  const auto cross_entropy = [](const at::Tensor& scores, const at::Tensor& target) {
    return at::cross_entropy_loss(scores.flatten(0, -2), target.flatten());
  };
  if (options.model == "mlp") {
    return train(
        options,
        bench::mlp(),
        {at::randn({64, 784}), at::randint(10, {64}, at::kLong)},
        cross_entropy);
  }
  if (options.model == "wide") {
    return train(
        options,
        bench::wide(),
        {at::randn({8, 2048}), at::randint(10, {8}, at::kLong)},
        cross_entropy);
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
    const at::Tensor text = at::randint(256, {8, 128}, at::kLong);
    return train(options, bench::transformer(), {text, text}, cross_entropy);
  }
  if (options.model == "gpt2") {
    const at::Tensor text = at::randint(50304, {8, 1024}, at::kLong);
    return train(options, bench::gpt2(), {text, text}, cross_entropy);
  }
  throw lockstep::ConfigError("step_bench", "unknown model '" + options.model + "'");
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app("one rank of bench/step.py, bench/loader.py and bench/gpu.py");
    Options options;
    app.add_option("--model", options.model);
    app.add_flag("--alone", options.alone);
    app.add_flag("--loader", options.loader);
    app.add_flag("--shared", options.shared);
    app.add_option("--zero", options.zero);
    app.add_option("--offload-optimizer", options.offload_optimizer);
    app.add_option("--offload-param", options.offload_param);
    app.add_flag("--super-offload", options.super_offload);
    app.add_option("--precision", options.precision);
    app.add_option("--steps", options.steps);
    app.add_option("--accumulate", options.accumulate);
    app.add_option("--trace", options.trace, "a folder for a trace of three more steps");
    CLI11_PARSE(app, argc, argv);
    at::set_num_threads(1);
    lockstep::keep_freed_memory();  // As the Accelerator does: alone is the limit.
    torch::manual_seed(0);
    const Figures figures = measure(options);
    if (lockstep::world_from_environment(lockstep::Environment::process()).rank == 0) {
      std::cout << nlohmann::json{{"us", figures.us}, {"peak_mib", figures.peak_mib}}.dump() + "\n"
                << std::flush;
    }
    return 0;
  });
}
