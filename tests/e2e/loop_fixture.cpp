// SPDX-License-Identifier: Apache-2.0
//
// Checks that need real processes: each has its own random generators and environment. Started with
// a check's name by loop_test.cpp, on several ranks; ends with 0 if it holds.
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

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

/// A loop of two micro-steps an update, over data that differ from process to process, that takes
/// `step` after each backward.
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

// --- slips that are errors, or said

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
      {"diverges", diverges}};
  return lockstep::run_main([&] {
    if (argc != 2 || checks.count(argv[1]) == 0) {
      throw lockstep::ConfigError("loop_fixture", "expected the name of a check");
    }
    checks.at(argv[1])();
    return 0;
  });
}
