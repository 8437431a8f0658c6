// SPDX-License-Identifier: Apache-2.0
//
// zero_fixture STAGE [FOLDER LAYERS]
//
// Trains a model of 50 million parameters (200 MB) for two steps at the stage of ZeRO that is given
// (0: data parallel), under whatever limit its caller has set, and prints the loss. With a folder,
// a model of so many layers, each 4 MiB, is trained and its state saved there.
#include <cstdlib>
#include <iostream>
#include <optional>

#include <torch/torch.h>

#include "lockstep/lockstep.h"

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    const int stage = argc > 1 ? std::atoi(argv[1]) : 0;
    const int layer_count = argc > 3 ? std::atoi(argv[3]) : 48;
    at::set_num_threads(1);
    torch::manual_seed(0);
    lockstep::Accelerator accelerator(
        {.zero = stage == 0 ? std::nullopt
                            : std::optional(lockstep::ZeroPlugin{
                                  .stage = stage, .bucket_cap_bytes = int64_t{4} << 20})});
    auto net = accelerator.zero_init([layer_count] {
      torch::nn::Sequential layers;
      for (int i = 0; i < layer_count; ++i) {
        layers->push_back(torch::nn::Linear(1024, 1024));
      }
      return layers;
    });
    auto [model, optimizer] =
        accelerator.prepare(net, lockstep::optim::AdamW(net->parameters(), {.lr = 1e-3}));
    double loss = 0;
    for (int step = 0; step < 2; ++step) {
      const at::Tensor error = (model->forward(at::ones({1, 1024})) - 1).square().mean();
      loss = error.item<double>();
      accelerator.backward(error);
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.print("loss " + std::to_string(loss));
    if (argc > 2) {
      accelerator.save_state(argv[2]);
    }
    return 0;
  });
}
