// SPDX-License-Identifier: Apache-2.0
// Trains the network of PyTorch's C++ example of distributed training (cpp/distributed), with its
// options: SGD with a rate of 0.01, 64 pictures in a step of all processes, 10 epochs.
#include <lockstep/lockstep.h>

#include <torch/torch.h>

namespace data = lockstep::data;

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 10, 5))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(10, 20, 5))};
  torch::nn::Dropout2d drop{register_module("drop", torch::nn::Dropout2d())};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(320, 50))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(50, 10))};

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(drop(conv2(x)), 2));
    x = torch::relu(fc1(x.flatten(1)));
    return fc2(torch::dropout(x, 0.5, is_training()));
  }
};
TORCH_MODULE(Net);

int train(int64_t epochs) {
  lockstep::Accelerator accelerator({.split_batches = true});
  torch::manual_seed(accelerator.process_index());
  Net net;
  auto [model, optimizer, train_set, test_set] = accelerator.prepare(
      net,
      torch::optim::SGD(net->parameters(), 0.01),
      data::Loader(
          data::fashion_mnist(data::FashionMnistSplit::kTrain),
          {.batch_size = 64, .shuffle = true}),
      data::Loader(data::fashion_mnist(data::FashionMnistSplit::kTest), {.batch_size = 1000}));

  for ([[maybe_unused]] const int64_t epoch : accelerator.epochs(epochs)) {
    for (auto& batch : train_set) {
      optimizer.zero_grad();
      accelerator.backward(torch::cross_entropy_loss(model->forward(batch.data), batch.target));
      optimizer.step();
    }
  }

  model->eval();
  const torch::NoGradGuard no_grad;
  int64_t right = 0;
  for (auto& batch : test_set) {
    const auto [answers, targets] =
        accelerator.gather_for_metrics(model->forward(batch.data).argmax(1), batch.target);
    right += (answers == targets).sum().item<int64_t>();
  }
  accelerator.print(std::to_string(right) + " of 10000 test pictures");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return train(argc > 1 ? std::stoll(argv[1]) : 10); });
}
