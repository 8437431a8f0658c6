// SPDX-License-Identifier: Apache-2.0
// Trains on a stream: lines of a file that are read in their own order, each by one process.
#include <fstream>
#include <lockstep/lockstep.h>
#include <memory>
#include <optional>
#include <string>

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;

namespace {

struct Sample {
  float x = 0;
  float y = 0;
  LOCKSTEP_FIELDS(x, y)
};

/// Lines "x y" of a text file.
struct Lines {
  std::string path;

  /// Returns a function that returns the next sample, or nullopt at the end.
  auto stream(int64_t /*epoch*/) const {
    return [in = std::make_shared<std::ifstream>(path)]() -> std::optional<Sample> {
      Sample sample;
      return *in >> sample.x >> sample.y ? std::optional(sample) : std::nullopt;
    };
  }
};

int train() {
  lockstep::Accelerator accelerator;
  accelerator.on_main_process([] {
    std::ofstream out("line.txt");
    for (int i = 0; i < 1000; ++i) {
      out << i / 1000.0 << ' ' << 3 * (i / 1000.0) + 1 << '\n';
    }
  });
  accelerator.wait_for_everyone();
  torch::nn::Linear net(1, 1);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      optim::SGD(net->parameters(), {.lr = 0.3}),
      data::Loader(Lines{"line.txt"}, {.batch_size = 16}));

  int64_t samples = 0;
  for ([[maybe_unused]] const int64_t epoch : accelerator.epochs(10)) {
    for (auto& [x, y] : loader) {  // float [batch] each
      const auto loss = torch::mse_loss(model->forward(x.unsqueeze(1)), y.unsqueeze(1));
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      samples += accelerator.gather_for_metrics(x).size(0);
    }
  }
  accelerator.print(
      "slope " + std::to_string(model->weight.item<float>()) + " after " + std::to_string(samples) +
      " samples");
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(train);
}
