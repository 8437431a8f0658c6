// SPDX-License-Identifier: Apache-2.0
// Learns which points of a square are inside a circle.
#include <lockstep/lockstep.h>

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;

namespace {

data::TensorDataset points(int64_t count, uint64_t seed) {
  torch::manual_seed(seed);
  const auto where = torch::rand({count, 2}) * 2 - 1;
  const auto inside = (where.square().sum(1) < 0.64).to(torch::kLong);
  return {where, inside};
}

int train() {
  lockstep::Accelerator accelerator({.project_dir = "runs/quickstart"});
  data::set_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::ReLU(), torch::nn::Linear(32, 2));
  auto [model, optimizer, train_set, test_set] = accelerator.prepare(
      net,
      optim::AdamW(net->parameters(), {.lr = 3e-3}),
      data::Loader(points(4096, 2), {.batch_size = 32, .shuffle = true}),
      data::Loader(points(1000, 3), {.batch_size = 256}));

  for (const int64_t epoch : accelerator.epochs(5)) {
    for (auto& batch : train_set) {
      const auto loss = torch::cross_entropy_loss(model->forward(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    int64_t right = 0;
    for (auto& batch : test_set) {
      const torch::NoGradGuard no_grad;
      const auto answer = model->forward(batch.data).argmax(1);
      const auto [answers, targets] = accelerator.gather_for_metrics(answer, batch.target);
      right += (answers == targets).sum().item<int64_t>();
    }
    accelerator.print(
        "epoch " + std::to_string(epoch + 1) + ": " + std::to_string(right) + " of 1000 points");
    accelerator.save_state();
  }
  accelerator.end_training();
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(train);
}
