// SPDX-License-Identifier: Apache-2.0
// A training program of one process, with libtorch alone. port_after.cpp is its port.
#include <iostream>
#include <optional>

#include <torch/torch.h>

namespace {

class Points : public torch::data::datasets::Dataset<Points> {
 public:
  torch::data::Example<> get(size_t index) override {
    const auto x = torch::rand({2}, generator_of(index)) * 2 - 1;
    return {x, (x.square().sum() < 0.64).to(torch::kLong)};
  }
  std::optional<size_t> size() const override { return 4096; }

 private:
  static at::Generator generator_of(size_t index) { return at::detail::createCPUGenerator(index); }
};

}  // namespace

int main() {
  torch::manual_seed(1);
  torch::nn::Sequential net(
      torch::nn::Linear(2, 32),
      torch::nn::BatchNorm1d(32),
      torch::nn::ReLU(),
      torch::nn::Linear(32, 2));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.03).momentum(0.9));
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      Points().map(torch::data::transforms::Stack<>()), 128);

  for (int epoch = 0; epoch < 4; ++epoch) {
    if (epoch == 3) {  // The last epoch has a lower rate.
      for (auto& group : optimizer.param_groups()) {
        group.options().set_lr(0.003);
      }
    }
    double sum = 0;
    int batches = 0;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(net->forward(batch.data), batch.target);
      loss.backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      sum += loss.item<double>();
      ++batches;
    }
    std::cout << "epoch " << epoch + 1 << ": loss " << sum / batches << '\n';
  }
  torch::save(net, "net.pt");
  return 0;
}
