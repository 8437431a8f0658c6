// SPDX-License-Identifier: Apache-2.0
// Trains on a dataset of torch::data, with its transforms.
#include <lockstep/lockstep.h>
#include <optional>

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;
namespace transforms = torch::data::transforms;

namespace {

/// An ordinary dataset of torch.
class Points : public torch::data::datasets::Dataset<Points> {
 public:
  torch::data::Example<> get(size_t index) override {
    const auto x = torch::full({1}, static_cast<double>(index) / 1000);
    return {x, 2 * x};
  }
  std::optional<size_t> size() const override { return 1000; }
};

int train() {
  lockstep::Accelerator accelerator;
  data::set_seed(1);
  torch::nn::Linear net(1, 1);
  auto points = Points()
                    .map(transforms::Lambda<torch::data::Example<>>([](auto example) {
                      example.data += torch::randn({1}) * 0.01;
                      return example;
                    }))
                    .map(transforms::Stack<>());
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      optim::SGD(net->parameters(), {.lr = 0.3}),
      data::Loader(data::from_torch(points), {.batch_size = 20, .shuffle = true}));
  for ([[maybe_unused]] const int64_t epoch : accelerator.epochs(10)) {
    for (auto& batch : loader) {
      accelerator.backward(torch::mse_loss(model->forward(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  accelerator.print("slope " + std::to_string(model->weight.item<float>()));
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(train);
}
