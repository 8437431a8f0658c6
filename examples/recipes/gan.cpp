// SPDX-License-Identifier: Apache-2.0
// A GAN that learns to draw points of a circle. The argument is ZeRO's stage; 0: data parallel.
#include <lockstep/lockstep.h>
#include <optional>

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;

namespace {

constexpr int64_t kNoise = 4;

torch::nn::Sequential network(int64_t inputs, int64_t outputs) {
  return torch::nn::Sequential(
      torch::nn::Linear(inputs, 64),
      torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)),
      torch::nn::Linear(64, outputs));
}

data::TensorDataset circle() {
  const auto angle = torch::rand({4096}) * 6.2831853;
  return {torch::stack({angle.cos(), angle.sin()}, 1), torch::zeros({4096})};
}

void set_requires_grad(torch::nn::Sequential& model, bool value) {
  for (at::Tensor& parameter : model->parameters()) {
    parameter.requires_grad_(value);
  }
}

int train(int stage) {
  lockstep::AcceleratorOptions options;
  if (stage > 0) {
    options.zero = lockstep::ZeroPlugin{.stage = stage};
  }
  // Under ZeRO each model has its own Accelerator of the same processes. Otherwise one has both.
  lockstep::Accelerator of_generator(options);
  std::optional<lockstep::Accelerator> second;
  if (stage > 0) {
    second.emplace(options, of_generator.world(), of_generator.group());
  }
  lockstep::Accelerator& of_discriminator = second ? *second : of_generator;

  data::set_seed(1);  // The same data and weights on every process.
  auto g = network(kNoise, 2);
  auto d = network(2, 1);
  auto [generator, g_optimizer] =
      of_generator.prepare(g, optim::Adam(g->parameters(), {.lr = 1e-3, .betas = {0.5, 0.999}}));
  auto [discriminator, d_optimizer] = of_discriminator.prepare(
      d, optim::Adam(d->parameters(), {.lr = 1e-3, .betas = {0.5, 0.999}}));
  auto loader =
      of_discriminator.prepare(data::Loader(circle(), {.batch_size = 64, .shuffle = true}));
  data::set_seed(
      1, /*device_specific=*/true, of_generator.process_index());  // Other noise on each.

  for ([[maybe_unused]] const int64_t epoch : of_discriminator.epochs(12)) {
    for (auto& batch : loader) {
      at::Tensor fake;
      {
        const torch::NoGradGuard no_grad;
        fake = generator->forward(torch::randn({64, kNoise}));
      }
      const auto on_real = torch::softplus(-discriminator->forward(batch.data)).mean();
      const auto on_fake = torch::softplus(discriminator->forward(fake)).mean();
      of_discriminator.backward(on_real + on_fake);
      d_optimizer.step();
      d_optimizer.zero_grad();

      set_requires_grad(discriminator, false);  // The generator's loss trains the generator only.
      const auto made = generator->forward(torch::randn({64, kNoise}));
      of_generator.backward(torch::softplus(-discriminator->forward(made)).mean());
      set_requires_grad(discriminator, true);
      g_optimizer.step();
      g_optimizer.zero_grad();
    }
  }

  const torch::NoGradGuard no_grad;
  const auto made = of_generator.gather(generator->forward(torch::randn({512, kNoise})));
  of_generator.print(
      "mean radius of the generated points: " +
      std::to_string(made.square().sum(1).sqrt().mean().item<double>()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return train(argc > 1 ? std::stoi(argv[1]) : 0); });
}
