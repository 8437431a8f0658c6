// SPDX-License-Identifier: Apache-2.0
// Tries several learning rates, each as a job of two processes, and prints the best one.
#include <cstdio>
#include <lockstep/lockstep.h>
#include <map>
#include <vector>

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;

namespace {

/// Returns the final loss, the same on every process.
double train(double lr) {
  lockstep::Accelerator accelerator;
  data::set_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  const auto x = torch::rand({512, 1}) * 6;
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      optim::SGD(net->parameters(), {.lr = lr}),
      data::Loader(data::TensorDataset(x, x.sin()), {.batch_size = 16, .shuffle = true}));
  at::Tensor loss;
  for ([[maybe_unused]] const int64_t epoch : accelerator.epochs(10)) {
    for (auto& batch : loader) {
      loss = torch::mse_loss(model->forward(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  return accelerator.reduce(loss.detach(), lockstep::ReduceOp::kAvg).item<double>();
}

int sweep() {
  std::map<double, double> rates;  // By loss.
  for (const double lr : {0.001, 0.01, 0.1}) {
    const std::vector<double> losses = lockstep::launch([&] { return train(lr); }, 2);  // By rank.
    rates[losses[0]] = lr;
  }
  // Code before a launch runs in its ranks, too; this code runs once.
  for (const auto& [loss, lr] : rates) {
    std::printf("lr %.3f: loss %.4f\n", lr, loss);
  }
  std::printf("best: %.3f\n", rates.begin()->second);
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(sweep);
}
