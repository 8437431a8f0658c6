// SPDX-License-Identifier: Apache-2.0
//
// zero_fixture STAGE [FOLDER LAYERS [shared]]
// zero_fixture STAGE wire LAYERS
//
// Trains a model of 50 million parameters (200 MB) for two steps at that stage of ZeRO (0: data
// parallel), and prints the loss. With FOLDER it trains LAYERS layers of 4 MiB each, and saves the
// state there; `shared` sets shared_parameters. With `wire` it trains LAYERS layers of 1 MiB each,
// a unit each, for three steps. It prints "sent A B C of P": the bytes that the loopback interface
// sent in each step, and those of the parameters.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include <torch/torch.h>

#include "lockstep/lockstep.h"

namespace {

/// Returns the bytes that the loopback interface of this network namespace has sent, headers
/// included.
int64_t bytes_sent() {
  std::ifstream file("/proc/net/dev");
  std::string word;
  while (file >> word && word != "lo:") {
  }
  int64_t value = 0;
  for (int field = 0; field < 9; ++field) {
    file >> value;  // The first eight count received data.
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
