// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/local_sgd.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/adam.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

const AcceleratorOptions kShared{.shared_parameters = true};

template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SharedParameters, are_there_once_and_gradients_are_not) {
  accelerated_ranks(3, kShared, [](Accelerator& accelerator) {
    torch::nn::Linear net(4, 3);
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.1}));
    accelerator.backward(
        model->forward(at::ones({2, 4}) * (1 + accelerator.process_index())).sum());
    const at::Tensor before = model->weight.detach().clone();
    optimizer.step();
    const at::Tensor after = model->weight.detach().clone();
    EXPECT_FALSE(at::equal(before, after));
    EXPECT_TRUE(
        at::equal(accelerator.gather(after.unsqueeze(0)), after.unsqueeze(0).expand({3, 3, 4})));
    if (accelerator.is_last_process()) {
      model->weight.data().fill_(5);
    }
    accelerator.wait_for_everyone();
    EXPECT_EQ(model->weight.mean().item<double>(), 5);
    accelerator.wait_for_everyone();
  });
}

TEST(SharedParameters, change_nothing_in_a_world_of_one) {
  Accelerator accelerator(kShared, WorldSpec{}, Group());
  torch::nn::Linear net(4, 3);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), {0.1}));
  accelerator.backward(model->forward(at::ones({2, 4})).sum());
  optimizer.step();
}

TEST(SharedParameters, refuse_other_optimizers_models_and_ways_of_training) {
  accelerated_ranks(2, kShared, [](Accelerator& accelerator) {
    torch::nn::Linear net(4, 3);
    EXPECT_THAT(
        error_of([&] { accelerator.prepare(net, torch::optim::SGD(net->parameters(), {0.1})); }),
        HasSubstr("needs optimizers of lockstep::optim"));
    torch::nn::Linear other(4, 3);
    EXPECT_THAT(
        error_of([&] { accelerator.prepare(optim::AdamW(other->parameters(), {.lr = 0.1})); }),
        HasSubstr("a model that was not prepared"));
    EXPECT_THAT(
        error_of([&] { accelerator.join_uneven_inputs([] {}); }),
        HasSubstr("does not go with shared_parameters"));
    EXPECT_THAT(
        error_of([&] { const LocalSgd local(accelerator, net, {.local_sgd_steps = 2}); }),
        HasSubstr("does not go with shared_parameters"));
  });
}

}  // namespace
}  // namespace lockstep
