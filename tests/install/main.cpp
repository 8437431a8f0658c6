// SPDX-License-Identifier: Apache-2.0
// A project that uses lockstep::lockstep: the training loop, and torch.
#include <iostream>
#include <lockstep/lockstep.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

int main() {
  return lockstep::run_main([] {
    lockstep::Accelerator accelerator;
    torch::nn::Linear net(1, 1);
    auto [model, optimizer, loader] = accelerator.prepare(
        net,
        torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1)),
        lockstep::data::Loader(
            lockstep::data::TensorDataset(torch::ones({8, 1}), torch::ones({8, 1})),
            {.batch_size = 4}));
    for (const int64_t epoch : accelerator.epochs(50)) {
      for (auto& batch : loader) {
        const auto loss = (model->forward(batch.data) - batch.target).pow(2).mean();
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        if (epoch == 49) {
          accelerator.print("loss " + std::to_string(loss.item<double>()));
        }
      }
    }
    return optimizer.steps() == 100 ? 0 : 1;
  });
}
