// SPDX-License-Identifier: Apache-2.0
//
// Trains a small network and prints each loss. python/tests/test_cross.py runs the same loop in
// Python, and loads the checkpoints of one in the other. Usage: cross_loop FOLDER FIRST_STEP
// LAST_STEP; loads FOLDER/<first> unless it is 0, saves FOLDER/<last>.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/lockstep.h"

namespace {

namespace data = lockstep::data;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  at::Tensor forward(const at::Tensor& input) {
    return fc2(torch::nn::functional::relu(fc1(input)));
  }
  torch::nn::Linear fc1{8, 16};
  torch::nn::Linear fc2{16, 4};
};
TORCH_MODULE(Net);

void train(const std::filesystem::path& folder, int64_t first, int64_t last) {
  lockstep::Accelerator accelerator({.gradient_accumulation_steps = 2});
  const at::Tensor inputs = at::sin(at::arange(96 * 8, at::kFloat)).reshape({96, 8});
  const at::Tensor targets = at::arange(96) % 4;
  torch::manual_seed(3);
  Net net;
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      lockstep::optim::AdamW(net->parameters(), {.lr = 1e-2}),
      data::Loader(data::TensorDataset(inputs, targets), {.batch_size = 4}));
  if (first > 0) {
    accelerator.load_state(folder / std::to_string(first));
  }
  while (optimizer.steps() < last) {
    for (auto& batch : loader) {
      auto micro_step = accelerator.accumulate(model);
      const at::Tensor loss =
          torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
      accelerator.backward(loss);
      if (accelerator.sync_gradients()) {
        accelerator.clip_grad_norm_(model->parameters(), 0.5);
      }
      optimizer.step();
      optimizer.zero_grad();
      std::printf("%d %a\n", accelerator.process_index(), loss.item<float>());
      if (optimizer.steps() == last) {
        break;
      }
    }
  }
  accelerator.save_state(folder / std::to_string(last));
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    if (argc != 4) {
      throw lockstep::ConfigError("cross_loop", "usage: cross_loop FOLDER FIRST_STEP LAST_STEP");
    }
    train(argv[1], std::atoll(argv[2]), std::atoll(argv[3]));
    return 0;
  });
}
