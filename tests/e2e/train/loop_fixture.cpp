// SPDX-License-Identifier: Apache-2.0
//
// Checks of training loops that need real processes, since each has its own random generators and
// environment. loop_test.cpp starts it on several ranks with a check's name. Exit code 0: passed.
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

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

/// rng_types gives all processes rank 0's random numbers. Without it each process has its own.
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

/// Variables of Accelerate's launcher count, and Lockstep's override them.
void environment() {
  Accelerator accelerator;
  require(accelerator.mixed_precision() == lockstep::Precision::kBF16, "mixed precision");
  require(accelerator.gradient_accumulation_steps() == 3, "accumulation steps");
  std::map<std::string, at::Tensor> value;
  value[accelerator.is_main_process() ? "a" : "b"] = at::ones({1});
  try {
    std::ignore = accelerator.gather(value);
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

/// Trains with two micro-steps an update, on data that differ between processes, and calls `step`
/// after each backward.
template <typename Step>
void small_loop(Accelerator& accelerator, torch::nn::Linear net, const Step& step) {
  for (int i = 0; i < 8; ++i) {
    auto micro_step = accelerator.accumulate();
    accelerator.backward(net->forward(at::rand({4, 2})).square().mean());
    step();
  }
  accelerator.end_training();
}

lockstep::AcceleratorOptions in_pairs() {
  return {.gradient_accumulation_steps = 2};
}

// --- mistakes that cause an error or a warning

void steps_the_original() {
  Accelerator accelerator(in_pairs());
  torch::nn::Linear net(2, 1);
  lockstep::optim::AdamW opt(net->parameters(), {.lr = 0.1});
  auto [model, optimizer] = accelerator.prepare(net, opt);
  small_loop(accelerator, model, [&] { opt.step(); });
}

void steps_torchs_original() {
  Accelerator accelerator(in_pairs());
  torch::nn::Linear net(2, 1);
  torch::optim::SGD opt(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, opt);
  small_loop(accelerator, model, [&] {
    opt.step();
    opt.zero_grad();
  });
}

void optimizer_not_prepared() {
  Accelerator accelerator(in_pairs());
  torch::nn::Linear net(2, 1);
  lockstep::optim::AdamW opt(net->parameters(), {.lr = 0.1});
  auto model = accelerator.prepare(net);
  small_loop(accelerator, model, [&] {
    opt.step();
    opt.zero_grad();
  });
}

void model_not_prepared() {
  Accelerator accelerator(in_pairs());
  torch::nn::Linear net(2, 1);
  auto optimizer = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
  small_loop(accelerator, net, [&] { optimizer.step(); });
}

void plain_backward() {
  Accelerator accelerator(in_pairs());
  torch::nn::Linear net(2, 1);
  auto [model, optimizer] =
      accelerator.prepare(net, lockstep::optim::AdamW(net->parameters(), {.lr = 0.1}));
  auto micro_step = accelerator.accumulate(model);
  model->forward(at::rand({4, 2})).square().mean().backward();
}

void another_models_optimizer() {
  Accelerator accelerator(in_pairs());
  torch::nn::Linear net(2, 1), other(2, 1);
  auto [model, optimizer] =
      accelerator.prepare(net, lockstep::optim::AdamW(other->parameters(), {.lr = 0.1}));
  small_loop(accelerator, model, [&, &optimizer = optimizer] { optimizer.step(); });
}

void seed_of_one_process() {
  Accelerator accelerator;
  const uint64_t seed = accelerator.is_main_process() ? 7 : 0;
  const at::Tensor rows = at::zeros({8, 2});
  accelerator.prepare(lockstep::data::Loader(
      lockstep::data::TensorDataset(rows, rows), {.shuffle = true, .seed = seed}));
}

void diverges() {
  Accelerator accelerator(in_pairs());
  torch::nn::Linear net(2, 1);
  auto [model, optimizer] =
      accelerator.prepare(net, lockstep::optim::SGD(net->parameters(), {.lr = 1e30}));
  small_loop(accelerator, model, [&, &optimizer = optimizer] {
    optimizer.step();
    optimizer.zero_grad();
  });
}

/// Sample i is the augmented number i, with the target i.
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
  at::Tensor samples = at::zeros({24});  ///< The last epoch's samples of all ranks, by index.
  at::Tensor weight;
};

/// Trains a network with dropout for three epochs. Saves to `to` in the middle of the second epoch,
/// or starts from the checkpoint `from`.
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

/// Augmentation with torch's default generator does not depend on the number of workers or on a
/// resume, and does not change the dropout of the loop.
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
        samples[static_cast<size_t>(batch.target.item<int64_t>())] = batch.data.flatten();
      }
    }
    return samples;
  }());
  require(at::equal(alone, expected.samples), "one process has other samples");
}

/// The point at which rank 1 runs out of memory, in an attempt with too large a batch.
enum class RunsOut { kBeforeAnything, kBetweenSteps, kInBackward, kAfterTheOthersAreDone };

/// Fails like a kernel that needs more memory than exists.
void run_out_of_memory() {
  at::empty({int64_t{1} << 50});
}

/// Trains three steps, after which the weights must be equal on all ranks.
void train_with(Accelerator& accelerator, int64_t batch_size, bool runs_out, RunsOut where) {
  if (runs_out && where == RunsOut::kBeforeAnything) {
    run_out_of_memory();
  }
  torch::manual_seed(1);
  torch::nn::Linear net(4, 4);
  auto [model, optimizer] =
      accelerator.prepare(net, lockstep::optim::AdamW(net->parameters(), {.lr = 0.1}));
  for (int step = 0; step < 3; ++step) {
    if (runs_out && where == RunsOut::kBetweenSteps && step == 1) {
      run_out_of_memory();
    }
    const at::Tensor loss = model->forward(at::rand({batch_size, 4})).square().mean();
    if (runs_out && where == RunsOut::kInBackward && step == 1) {
      loss.register_hook([](const at::Tensor& gradient) {
        run_out_of_memory();
        return gradient;
      });
    }
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  require(same_on_all(accelerator, model->weight.detach().clone()), "weights differ");
  if (runs_out && where == RunsOut::kAfterTheOthersAreDone) {
    run_out_of_memory();
  }
}

/// Only rank 1 runs out of memory, and both ranks train with the same smaller batch.
void executable_batch_size() {
  Accelerator accelerator;
  for (const RunsOut where :
       {RunsOut::kBeforeAnything,
        RunsOut::kBetweenSteps,
        RunsOut::kInBackward,
        RunsOut::kAfterTheOthersAreDone}) {
    std::vector<int64_t> tried;
    auto train = lockstep::find_executable_batch_size(
        accelerator,
        [&](int64_t batch_size) {
          tried.push_back(batch_size);
          accelerator.free_memory();  // Of the previous call.
          const bool runs_out = accelerator.process_index() == 1 && batch_size > 50;
          train_with(accelerator, batch_size, runs_out, where);
          return batch_size;
        },
        64);
    require(train() == 45, "the size is not 45");
    require(tried == std::vector<int64_t>{64, 57, 51, 45}, "other sizes were tried");
    require(train() == 45 && tried.size() == 5, "the size is not kept");
  }
}

/// An error that is not about memory ends the attempt, on its rank and on the waiting ranks.
void broken_attempt() {
  Accelerator accelerator;
  auto train = lockstep::find_executable_batch_size(accelerator, [&](int64_t batch_size) {
    if (accelerator.process_index() == 1) {
      throw lockstep::Error("train", "a mistake of the program's");
    }
    train_with(accelerator, batch_size, false, RunsOut::kBeforeAnything);
  });
  train();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> checks{
      {"random_states", random_states},
      {"environment", environment},
      {"local_sgd", local_sgd},
      {"steps_the_original", steps_the_original},
      {"steps_torchs_original", steps_torchs_original},
      {"optimizer_not_prepared", optimizer_not_prepared},
      {"model_not_prepared", model_not_prepared},
      {"plain_backward", plain_backward},
      {"another_models_optimizer", another_models_optimizer},
      {"seed_of_one_process", seed_of_one_process},
      {"diverges", diverges},
      {"augmentation", augmentation},
      {"executable_batch_size", executable_batch_size},
      {"broken_attempt", broken_attempt}};
  return lockstep::run_main([&] {
    if (argc != 2 || checks.count(argv[1]) == 0) {
      throw lockstep::ConfigError("loop_fixture", "expected the name of a check");
    }
    checks.at(argv[1])();
    return 0;
  });
}
