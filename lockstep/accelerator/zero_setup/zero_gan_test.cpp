// SPDX-License-Identifier: Apache-2.0
//
// The recipe of docs/zero.md for a GAN: one Accelerator per model, both of the same processes.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/optim/rules/adam.h"
#include "tests/nets.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using Net = test::TwoLayerNet;

Net make_generator() {
  return Net(test::TwoLayerOptions{.in = 8, .hidden = 32, .out = 12});
}

Net make_discriminator() {
  return Net(test::TwoLayerOptions{.in = 12, .hidden = 24, .out = 1});
}

optim::Adam make_optimizer(const Net& net) {
  return optim::Adam(net->parameters(), {.lr = 0.01, .betas = {0.5, 0.999}});
}

at::Tensor sine_samples(int rank, int step, at::IntArrayRef shape) {
  const int64_t count = c10::multiply_integers(shape);
  return at::sin(at::arange(count, at::kFloat) * (1.5 + rank) + step).reshape(shape);
}

void set_requires_grad(const Net& net, bool requires_grad) {
  for (at::Tensor& parameter : net->parameters()) {
    parameter.requires_grad_(requires_grad);
  }
}

/// One update of the discriminator, then one of the generator with the discriminator frozen.
struct GanUpdate {
  Accelerator& of_generator;
  Accelerator& of_discriminator;
  Net generator;
  Net discriminator;
  Optimizer generator_optimizer;
  Optimizer discriminator_optimizer;

  void operator()(int step) {
    const int rank = of_generator.process_index();
    at::Tensor fake;
    {
      const torch::NoGradGuard no_grad;
      fake = generator->forward(sine_samples(rank, step, {4, 8}));
    }
    const at::Tensor real = sine_samples(rank, 100 + step, {4, 12});
    const auto on_real = torch::softplus(-discriminator->forward(real)).mean();
    const auto on_fake = torch::softplus(discriminator->forward(fake)).mean();
    of_discriminator.backward(on_real + on_fake);
    discriminator_optimizer.step();
    discriminator_optimizer.zero_grad();

    set_requires_grad(discriminator, false);
    const at::Tensor made = generator->forward(sine_samples(rank, 200 + step, {4, 8}));
    of_generator.backward(torch::softplus(-discriminator->forward(made)).mean());
    set_requires_grad(discriminator, true);
    generator_optimizer.step();
    generator_optimizer.zero_grad();
  }

  at::Tensor weights() const {
    std::vector<at::Tensor> flat;
    for (const Net& net : {generator, discriminator}) {
      for (const at::Tensor& parameter : net->parameters()) {
        flat.push_back(parameter.detach().clone().reshape({-1}));
      }
    }
    return at::cat(flat);
  }
};

constexpr int kGanSteps = 6;

std::vector<at::Tensor> with_data_parallel() {
  std::vector<at::Tensor> weights(2);
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Net generator = make_generator();
    Net discriminator = make_discriminator();
    auto [g, g_optimizer, d, d_optimizer] = accelerator.prepare(
        generator, make_optimizer(generator), discriminator, make_optimizer(discriminator));
    GanUpdate step{accelerator, accelerator, g, d, g_optimizer, d_optimizer};
    for (int i = 0; i < kGanSteps; ++i) {
      step(i);
    }
    weights[static_cast<size_t>(accelerator.process_index())] = step.weights();
  });
  return weights;
}

struct Run {
  int first = 0;
  int last = kGanSteps;
  std::optional<fs::path> load = std::nullopt;
  std::optional<fs::path> save = std::nullopt;
};

std::vector<at::Tensor> with_zero(int stage, const Run& run) {
  std::vector<at::Tensor> weights(2);
  const AcceleratorOptions options{
      .zero = ZeroPlugin{
          .stage = stage, .bucket_cap_bytes = 1000, .stage3_param_persistence_threshold = 0}};
  accelerated_ranks(2, options, [&](Accelerator& of_generator) {
    Accelerator of_discriminator(options, of_generator.world(), of_generator.group());
    Net generator = make_generator();
    Net discriminator = make_discriminator();
    auto [g, g_optimizer] = of_generator.prepare(generator, make_optimizer(generator));
    auto [d, d_optimizer] = of_discriminator.prepare(discriminator, make_optimizer(discriminator));
    GanUpdate step{of_generator, of_discriminator, g, d, g_optimizer, d_optimizer};
    if (run.load) {
      of_discriminator.load_state(*run.load / "discriminator");
      of_generator.load_state(*run.load / "generator");
    }
    for (int i = run.first; i < run.last; ++i) {
      step(i);
    }
    if (run.save) {
      of_discriminator.save_state(*run.save / "discriminator");
      of_generator.save_state(*run.save / "generator");
    }
    weights[static_cast<size_t>(of_generator.process_index())] = step.weights();
  });
  return weights;
}

TEST(ZeroGan, TwoAcceleratorsTrainTheBitsOfDataParallel) {
  const std::vector<at::Tensor> expected = with_data_parallel();
  for (const int stage : {1, 2, 3}) {
    const std::vector<at::Tensor> got = with_zero(stage, {});
    EXPECT_TRUE(at::equal(got[0], expected[0])) << "stage " << stage;
    EXPECT_TRUE(at::equal(got[1], expected[0])) << "stage " << stage;
  }
}

TEST(ZeroGan, AResumedRunHasTheBitsOfTheUnbrokenOne) {
  for (const int stage : {1, 2, 3}) {
    const TestFolder folder;
    const std::vector<at::Tensor> expected = with_zero(stage, {});
    with_zero(stage, {.last = 3, .save = folder.path()});
    const std::vector<at::Tensor> got = with_zero(stage, {.first = 3, .load = folder.path()});
    EXPECT_TRUE(at::equal(got[0], expected[0])) << "stage " << stage;
  }
}

}  // namespace
}  // namespace lockstep
