// SPDX-License-Identifier: Apache-2.0
// Stops all processes in the same epoch when one of them asks for it.
#include <algorithm>
#include <limits>
#include <lockstep/lockstep.h>

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;

namespace {

data::TensorDataset noisy_line(int64_t count) {
  const auto x = torch::rand({count, 1});
  return {x, 3 * x + torch::randn({count, 1}) * 0.1};
}

int train() {
  constexpr int kPatience = 3;
  lockstep::Accelerator accelerator;
  data::set_seed(1);
  torch::nn::Linear net(1, 1);
  const auto held_out = noisy_line(256);  // Only the main process uses it.
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      optim::SGD(net->parameters(), {.lr = 0.5}),
      data::Loader(noisy_line(1024), {.batch_size = 64, .shuffle = true}));

  double best = std::numeric_limits<double>::infinity();
  int bad_epochs = 0;
  for (const int64_t epoch : accelerator.epochs(1000)) {
    for (auto& batch : loader) {
      accelerator.backward(torch::mse_loss(model->forward(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.on_main_process([&, &model = model] {
      const torch::NoGradGuard no_grad;
      const double loss =
          torch::mse_loss(model->forward(held_out.data()), held_out.target()).item<double>();
      bad_epochs = loss < best - 1e-5 ? 0 : bad_epochs + 1;
      best = std::min(best, loss);
      if (bad_epochs == kPatience) {
        accelerator.set_trigger();
      }
    });
    if (accelerator.check_trigger()) {  // True on every process.
      accelerator.print("stopped after epoch " + std::to_string(epoch + 1));
      break;
    }
  }
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(train);
}
