// SPDX-License-Identifier: Apache-2.0
//
// zero_fixture STAGE [FOLDER LAYERS [shared]]
// zero_fixture STAGE wire LAYERS
//
// Trains a model of 50 million parameters (200 MB) for two steps at the stage of ZeRO that is given
// (0: data parallel), under whatever limit its caller has set, and prints the loss. With a folder,
// a model of so many layers, each 4 MiB, is trained and its state saved there; `shared`: with
// parameters that the ranks of data parallelism share. With `wire`, one of so many layers, each 1
// MiB and a unit, for three steps; printed is "sent A B C of P": how many bytes the loopback
// interface has sent in each of them, and how many the parameters have.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include <torch/torch.h>

#include "lockstep/lockstep.h"

namespace {

/// Bytes that have gone over the loopback interface since its network namespace began, headers
/// included, once each.
int64_t bytes_sent() {
  std::ifstream file("/proc/net/dev");
  std::string word;
  while (file >> word && word != "lo:") {
  }
  int64_t value = 0;
  for (int field = 0; field < 9; ++field) {
    file >> value;  // Eight are of what was received.
  }
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    const int stage = argc > 1 ? std::atoi(argv[1]) : 0;
    const std::string folder = argc > 2 ? argv[2] : "";
    const int layer_count = argc > 3 ? std::atoi(argv[3]) : 48;
    const bool wire = folder == "wire";
    const int64_t width = wire ? 512 : 1024;
    // On the wire a layer's weight and bias are one bucket.
    const int64_t bucket = wire ? 4 * width * (width + 1) : int64_t{4} << 20;
    at::set_num_threads(1);
    torch::manual_seed(0);
    lockstep::Accelerator accelerator(
        {.zero = stage == 0 ? std::nullopt
                            : std::optional(
                                  lockstep::ZeroPlugin{.stage = stage, .bucket_cap_bytes = bucket}),
         .shared_parameters = argc > 4 && std::string_view(argv[4]) == "shared"});
    auto net = accelerator.zero_init([layer_count, width] {
      torch::nn::Sequential layers;
      for (int i = 0; i < layer_count; ++i) {
        layers->push_back(torch::nn::Linear(width, width));
      }
      return layers;
    });
    auto [model, optimizer] =
        accelerator.prepare(net, lockstep::optim::AdamW(net->parameters(), {.lr = 1e-3}));
    double loss = 0;
    std::string sent = "sent";
    for (int step = 0; step < (wire ? 3 : 2); ++step) {
      accelerator.wait_for_everyone();
      const int64_t before = bytes_sent();
      accelerator.wait_for_everyone();
      const at::Tensor error = (model->forward(at::ones({1, width})) - 1).square().mean();
      loss = error.item<double>();
      accelerator.backward(error);
      optimizer.step();
      optimizer.zero_grad();
      accelerator.wait_for_everyone();
      sent += " " + std::to_string(bytes_sent() - before);
    }
    if (wire) {
      accelerator.print(sent + " of " + std::to_string(4 * layer_count * width * (width + 1)));
      return 0;
    }
    accelerator.print("loss " + std::to_string(loss));
    if (!folder.empty()) {
      accelerator.save_state(folder);
    }
    return 0;
  });
}
