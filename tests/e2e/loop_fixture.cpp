// SPDX-License-Identifier: Apache-2.0
//
// Checks that need real processes: each has its own random generators and environment. Started with
// a check's name by loop_test.cpp, on several ranks; ends with 0 if it holds.
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/env.h"
#include "lockstep/lockstep.h"

namespace {

using lockstep::Accelerator;

void require(bool condition, const std::string& what) {
  if (!condition) {
    throw lockstep::Error("check", what);
  }
}

bool same_on_all(Accelerator& accelerator, const at::Tensor& tensor) {
  const at::Tensor all = accelerator.gather(tensor.detach().reshape({1, -1}));
  return (all == all[0]).all().item<bool>();
}

auto four_rows() {
  const at::Tensor rows = at::arange(4, at::kFloat).reshape({4, 1});
  return lockstep::data::Loader(lockstep::data::TensorDataset(rows, rows), {.batch_size = 1});
}

/// rng_types gives all processes rank 0's random numbers; without, each has its own.
void random_states() {
  for (const bool synchronised : {false, true}) {
    Accelerator accelerator(
        synchronised ? lockstep::AcceleratorOptions{.rng_types = {lockstep::data::RngType::kTorch}}
                     : lockstep::AcceleratorOptions{});
    lockstep::data::set_seed(7, /*device_specific=*/true, accelerator.process_index());
    auto loader = accelerator.prepare(four_rows());
    for (auto& batch : loader) {
      (void)batch;
      require(
          same_on_all(accelerator, at::rand({3})) == synchronised,
          synchronised ? "random numbers differ" : "random numbers are the same");
    }
  }
}

/// What Accelerate's launcher sets, and ours before it.
void environment() {
  Accelerator accelerator;
  require(accelerator.mixed_precision() == lockstep::Precision::kBF16, "mixed precision");
  require(accelerator.gradient_accumulation_steps() == 3, "accumulation steps");
  std::map<std::string, at::Tensor> value;
  value[accelerator.is_main_process() ? "a" : "b"] = at::ones({1});
  try {
    accelerator.gather(value);
    require(false, "different keys were gathered");
  } catch (const lockstep::ConfigError&) {
  }
}

/// Local SGD with dropout, fp16 and accumulation over real sockets ends with the same weights.
void local_sgd() {
  Accelerator accelerator(
      {.mixed_precision = lockstep::Precision::kFP16,
       .grad_scaler = {.init_scale = 64},
       .gradient_accumulation_steps = 2});
  lockstep::data::set_seed(7, /*device_specific=*/true, accelerator.process_index());
  torch::nn::Linear net(1, 4);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, lockstep::optim::AdamW(net->parameters(), {.lr = 0.1}), four_rows());
  lockstep::LocalSgd local_sgd(accelerator, model, {.local_sgd_steps = 3});
  int64_t apart = 0;
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (auto& batch : loader) {
      auto micro_step = accelerator.accumulate(model);
      const at::Tensor loss = [&, model = model]() mutable {
        auto cast = accelerator.autocast();
        return torch::dropout(model->forward(batch.data), 0.5, true).to(at::kFloat).pow(2).mean();
      }();
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      local_sgd.step();
      apart += same_on_all(accelerator, model->weight) ? 0 : 1;
    }
  }
  local_sgd.finish();
  require(apart > 0, "weights never were apart");
  require(same_on_all(accelerator, model->weight), "weights differ at the end");
}

/// Sample i is the number i, augmented; and i itself.
struct Augmented {
  int64_t size() const { return 24; }
  lockstep::data::Batch get(int64_t index) const {
    const at::Tensor number = at::full({1}, static_cast<double>(index));
    return {
        .data = torch::dropout(number + torch::rand({1}), 0.3, true),
        .target = at::full({1}, index, at::kLong)};
  }
};

struct AugmentedRun {
  at::Tensor samples = at::zeros({24});  ///< Of all ranks, by index; the last epoch's.
  at::Tensor weight;
};

/// Three epochs of a network with dropout. Saves in the middle of the second epoch to `to`, or
/// begins with what `from` holds.
AugmentedRun train_augmented(int workers, const std::string& from, const std::string& to) {
  Accelerator accelerator;
  lockstep::data::set_seed(7, /*device_specific=*/true, accelerator.process_index());
  torch::nn::Linear net(1, 4);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      lockstep::optim::AdamW(net->parameters(), {.lr = 0.1}),
      lockstep::data::Loader(
          lockstep::data::collated(Augmented()),
          {.batch_size = 12 / accelerator.num_processes() / 3,
           .shuffle = true,
           .seed = 5,
           .workers = workers}));
  if (!from.empty()) {
    torch::rand({100});
    accelerator.load_state(from);
  }
  AugmentedRun run;
  while (loader.epoch() < 3) {
    for (auto& batch : loader) {
      const auto all = accelerator.gather(batch);
      run.samples.index_put_({all.target.flatten()}, all.data.flatten());
      const at::Tensor output = torch::dropout(net->forward(batch.data), 0.5, true);
      accelerator.backward(output.pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
      if (!to.empty() && loader.epoch() == 1 && loader.cursor().batches == 3) {
        accelerator.save_state(to);
      }
    }
  }
  run.weight = net->weight.detach().clone();
  return run;
}

/// An augmentation with torch's default generator is the same whatever the number of workers, and
/// after a resume; nor do workers disturb the dropout of the loop.
void augmentation() {
  const std::string folder = lockstep::Environment::process().text("LOOP_FIXTURE_FOLDER").value();
  const AugmentedRun expected = train_augmented(0, "", folder + "/middle");
  for (const int workers : {0, 1, 4}) {
    for (const std::string& from : {std::string(), folder + "/middle"}) {
      const AugmentedRun run = train_augmented(workers, from, "");
      require(at::equal(run.samples, expected.samples), "samples differ");
      require(at::equal(run.weight, expected.weight), "weights differ");
    }
  }
  const at::Tensor alone = at::cat([&] {
    std::vector<at::Tensor> samples(24);
    lockstep::data::Loader loader(
        lockstep::data::collated(Augmented()), {.shuffle = true, .seed = 5});
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (auto& batch : loader) {
        samples[batch.target.item<size_t>()] = batch.data.flatten();
      }
    }
    return samples;
  }());
  require(at::equal(alone, expected.samples), "one process has other samples");
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> checks{
      {"random_states", random_states},
      {"environment", environment},
      {"local_sgd", local_sgd},
      {"augmentation", augmentation}};
  return lockstep::run_main([&] {
    if (argc != 2 || checks.count(argv[1]) == 0) {
      throw lockstep::ConfigError("loop_fixture", "expected the name of a check");
    }
    checks.at(argv[1])();
    return 0;
  });
}
