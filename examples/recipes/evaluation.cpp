// SPDX-License-Identifier: Apache-2.0
// Evaluates on all processes. Each test picture counts once, for any number of processes.
#include <cstdio>
#include <lockstep/lockstep.h>

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;
using TestSet = data::Loader<data::IdxImages>;

namespace {

struct Metrics {
  at::Tensor confusion;  ///< int64 [10, 10]: by target and answer.
  double loss = 0;
};

/// Returns the same metrics on every process. Collective.
Metrics evaluate(lockstep::Accelerator& accelerator, torch::nn::Linear& model, TestSet& test_set) {
  const torch::NoGradGuard no_grad;
  model->eval();
  auto confusion = torch::zeros({100}, torch::kLong);
  double loss = 0;
  for (auto& batch : test_set) {
    const auto scores = model->forward(batch.data.flatten(1));
    // One value for each sample: gather_for_metrics drops those of repeated samples.
    const auto each = torch::cross_entropy_loss(scores, batch.target, {}, at::Reduction::None);
    const auto [answers, targets, losses] =
        accelerator.gather_for_metrics(scores.argmax(1), batch.target, each);
    confusion += at::bincount((targets * 10 + answers).cpu(), {}, 100);
    loss += losses.sum().item<double>();
  }
  model->train();
  const auto count = static_cast<double>(confusion.sum().item<int64_t>());
  return {confusion.reshape({10, 10}), loss / count};
}

int run() {
  lockstep::Accelerator accelerator;
  data::set_seed(1);
  torch::nn::Linear net(784, 10);
  auto [model, optimizer, train_set, test_set] = accelerator.prepare(
      net,
      optim::SGD(net->parameters(), {.lr = 0.05}),
      data::Loader(
          data::fashion_mnist(data::FashionMnistSplit::kTrain),
          {.batch_size = 64, .shuffle = true}),
      data::Loader(data::fashion_mnist(data::FashionMnistSplit::kTest), {.batch_size = 300}));
  for (auto& batch : train_set) {
    accelerator.backward(
        torch::cross_entropy_loss(model->forward(batch.data.flatten(1)), batch.target));
    optimizer.step();
    optimizer.zero_grad();
    if (optimizer.steps() == 200) {
      break;
    }
  }

  const Metrics metrics = evaluate(accelerator, model, test_set);
  const auto right = metrics.confusion.diagonal();
  accelerator.on_main_process([&] {
    std::printf(
        "%ld of %ld right, loss %.3f\n",
        static_cast<long>(right.sum().item<int64_t>()),
        static_cast<long>(metrics.confusion.sum().item<int64_t>()),
        metrics.loss);
    for (int64_t c = 0; c < 10; ++c) {
      std::printf(
          "class %ld: recall %.2f, precision %.2f\n",
          static_cast<long>(c),
          (right[c] / metrics.confusion[c].sum()).item<double>(),
          (right[c] / metrics.confusion.select(1, c).sum()).item<double>());
    }
  });
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(run);
}
