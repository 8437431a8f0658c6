// SPDX-License-Identifier: Apache-2.0
// A weight with two names, which C++'s parameters() lists twice.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep {
namespace {

struct TiedImpl : torch::nn::Module {
  TiedImpl() : embedding(register_module("embedding", torch::nn::Embedding(4, 3))) {
    head = register_parameter("head", embedding->weight);
    const torch::NoGradGuard no_grad;
    embedding->weight.copy_(at::sin(at::arange(12, at::kFloat)).reshape({4, 3}));
  }
  at::Tensor loss(const at::Tensor& rows) {
    return at::matmul(embedding(rows), head.t()).square().mean();
  }
  torch::nn::Embedding embedding;
  at::Tensor head;
};
TORCH_MODULE(Tied);

/// Three updates by `make(parameters)`; the weight.
template <typename Make>
at::Tensor trained_tied(Accelerator& accelerator, const Make& make, bool each_once) {
  Tied net;
  std::vector<at::Tensor> parameters = net->parameters();
  EXPECT_EQ(parameters.size(), 2);
  if (each_once) {
    parameters.pop_back();
  }
  auto [model, optimizer] = accelerator.prepare(net, make(parameters));
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model->loss(at::arange(4) % (2 + accelerator.process_index())));
    accelerator.clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
  return net->embedding->weight.detach().clone();
}

template <typename Make>
void expect_one_update_a_step(const Make& make) {
  for (const int size : {1, 2}) {
    accelerated_ranks(size, {}, [&](Accelerator& accelerator) {
      const at::Tensor twice = trained_tied(accelerator, make, /*each_once=*/false);
      const at::Tensor once = trained_tied(accelerator, make, /*each_once=*/true);
      EXPECT_TRUE(at::equal(twice, once)) << twice << once;
    });
  }
}

TEST(TiedWeights, AreUpdatedOnceByEveryOptimizer) {
  expect_one_update_a_step([](const auto& parameters) {
    return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1));
  });
  expect_one_update_a_step([](const auto& parameters) {
    return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  expect_one_update_a_step([](const auto& parameters) {
    return torch::optim::Adam(parameters, torch::optim::AdamOptions(0.1));
  });
  expect_one_update_a_step(
      [](const auto& parameters) { return optim::AdamW(parameters, {.lr = 0.1}); });
}

TEST(TiedWeights, AreUpdatedOnceWhereAGroupIsAddedLater) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  Tied net;
  torch::nn::Linear first(2, 2);
  auto opt = std::make_shared<torch::optim::SGD>(first->parameters(), 0.5);
  auto [model, optimizer] = accelerator.prepare(net, opt);
  opt->add_param_group(torch::optim::OptimizerParamGroup(net->parameters()));
  const at::Tensor before = net->head.detach().clone();
  net->head.mutable_grad() = at::ones({4, 3});
  optimizer.step();
  EXPECT_TRUE(at::allclose(net->head, before - 0.5));
}

TEST(TiedWeights, HaveAStateThatIsSavedAndLoaded) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    std::vector<at::Tensor> ends;
    for (const bool resumes : {false, true}) {
      accelerator.free_memory();
      Tied net;
      auto [model, optimizer] =
          accelerator.prepare(net, torch::optim::Adam(net->parameters(), 0.1));
      const auto step = [&, &model = model, &optimizer = optimizer] {
        accelerator.backward(model->loss(at::arange(4)));
        optimizer.step();
        optimizer.zero_grad();
      };
      if (resumes) {
        accelerator.load_state(folder.path() / "state");
      } else {
        step();
        accelerator.save_state(folder.path() / "state");
      }
      step();
      ends.push_back(net->head.detach().clone());
    }
    EXPECT_TRUE(at::equal(ends[0], ends[1]));
  });
}

}  // namespace
}  // namespace lockstep
