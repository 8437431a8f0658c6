// SPDX-License-Identifier: Apache-2.0
// port_before.cpp on any number of processes.
#include <iostream>
#include <lockstep/lockstep.h>
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

int train() {
  lockstep::Accelerator accelerator({.split_batches = true});  // 1
  torch::manual_seed(1);                                       // 2
  torch::nn::Sequential net(
      torch::nn::Linear(2, 32),
      torch::nn::BatchNorm1d(32),
      torch::nn::ReLU(),
      torch::nn::Linear(32, 2));
  auto [model, optimizer, loader] = accelerator.prepare(  // 3
      net,
      torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.03).momentum(0.9)),
      lockstep::data::Loader(
          lockstep::data::from_torch(Points().map(torch::data::transforms::Stack<>())),
          {.batch_size = 128, .shuffle = true}));

  for (int epoch = 0; epoch < 4; ++epoch) {
    if (epoch == 3) {
      optimizer.set_learning_rates({0.003});  // 4
    }
    double sum = 0;
    int batches = 0;
    for (auto& batch : loader) {  // 5
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(model->forward(batch.data), batch.target);
      accelerator.backward(loss);                             // 6
      accelerator.clip_grad_norm_(model->parameters(), 1.0);  // 7
      optimizer.step();
      loss = accelerator.reduce(loss.detach(), lockstep::ReduceOp::kAvg);  // 8
      sum += loss.item<double>();
      ++batches;
    }
    if (accelerator.is_main_process()) {  // 9
      std::cout << "epoch " << epoch + 1 << ": loss " << sum / batches << '\n';
    }
  }
  accelerator.save_model(model, "net");  // 10
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(train);  // 11
}
