// SPDX-License-Identifier: Apache-2.0
// Programs that touch `grad` under ZeRO: what drops a gradient in one process drops it here, and
// what would see or change nothing is refused.
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/zero_setup/test_zero.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/zero/gradient_placeholders.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using torch::nn::Sequential;

at::Tensor batch(int step) {
  return sine_batch(0, step);
}

using Drop = std::function<void(Sequential&)>;

const std::vector<Drop>& drops() {
  static const std::vector<Drop> all = {
      [](Sequential& net) { net->zero_grad(); },
      [](Sequential& net) { net->zero_grad(/*set_to_none=*/false); },
      [](Sequential& net) {
        for (at::Tensor& parameter : net->parameters()) {
          parameter.mutable_grad().reset();
        }
      },
      [](Sequential& net) { torch::optim::SGD(net->parameters(), 1).zero_grad(); }};
  return all;
}

TEST(ZeroDroppedGradients, SkippingABadBatchEqualsSkippingItInOneProcess) {
  auto plain = sine_layers(2, 24);
  optim::SGD reference(plain->parameters(), {.lr = 0.125});
  for (int step = 0; step < 3; ++step) {
    plain->forward(batch(step)).square().mean().backward();
    reference.step();
    reference.zero_grad();
  }
  for (const int number : {0, 1, 2, 3}) {
    for (size_t drop = 0; drop < drops().size(); ++drop) {
      accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
        auto net = sine_layers(2, 24);
        auto [model, optimizer] =
            accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
        for (int step = 0; step < 3; ++step) {
          accelerator.backward(net->forward(batch(7)).square().mean() * 1000);
          drops()[drop](net);
          accelerator.backward(net->forward(batch(step)).square().mean());
          optimizer.step();
          drops()[drop](net);
        }
        EXPECT_TRUE(at::allclose(flat_weights(*net), flat_weights(*plain), 1e-5, 1e-6))
            << "stage " << number << ", drop " << drop;
        accelerator.end_training();
      });
    }
  }
}

TEST(ZeroDroppedGradients, ASkippedGroupOfMicroStepsLeavesNothing) {
  for (const int number : {1, 2, 3}) {
    for (const bool wide : {true, false}) {
      std::vector<at::Tensor> weights;
      for (const bool skips : {false, true}) {
        accelerated_ranks(2, stage(number, 2), [&](Accelerator& accelerator) {
          auto net = sine_layers(2, 24);
          net->to(wide ? at::kFloat : at::kBFloat16);
          auto [model, optimizer] =
              accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
          const auto micro_step = [&](int step) {
            auto scope = accelerator.accumulate(net);
            const at::Tensor rows = batch(step).to(net->parameters()[0].scalar_type());
            accelerator.backward(net->forward(rows).square().mean());
          };
          if (skips) {
            micro_step(5);
            net->zero_grad();
            micro_step(6);
            net->zero_grad();
          }
          micro_step(0);
          micro_step(1);
          optimizer.step();
          const at::Tensor mine = flat_weights(*net);
          if (accelerator.is_main_process()) {
            weights.push_back(mine);
          }
        });
      }
      EXPECT_TRUE(at::equal(weights[0], weights[1])) << "stage " << number << " wide " << wide;
    }
  }
}

TEST(ZeroDroppedGradients, BothPartsOfAGradientAreDropped) {
  for (const int number : {1, 2, 3}) {
    accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
      auto net = sine_layers(1, 24), plain = sine_layers(1, 24);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
      accelerator.backward(net->forward(batch(5)).square().mean());
      {
        const auto scope = accelerator.no_sync();
        accelerator.backward(net->forward(batch(6)).square().mean());
      }
      net->zero_grad();
      accelerator.backward(net->forward(batch(0)).square().mean());
      optimizer.step();

      optim::SGD reference(plain->parameters(), {.lr = 0.125});
      plain->forward(batch(0)).square().mean().backward();
      reference.step();
      EXPECT_TRUE(at::allclose(flat_weights(*net), flat_weights(*plain), 1e-5, 1e-6))
          << "stage " << number;
    });
  }
}

TEST(ZeroDroppedGradients, OfAnotherModelsBackwardDoNotCount) {
  for (const int number : {1, 2, 3}) {
    accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
      auto first = sine_layers(1, 24), second = sine_layers(1, 24);
      auto plain = sine_layers(1, 24);
      auto [model, optimizer] =
          accelerator.prepare(first, optim::SGD(first->parameters(), {.lr = 0.125}));
      Accelerator other(stage(number), accelerator.world(), accelerator.group().split(0));
      auto [judge, unused] = other.prepare(second, optim::SGD(second->parameters(), {.lr = 0.125}));
      accelerator.backward(second->forward(first->forward(batch(0))).square().mean());
      second->zero_grad();
      other.backward(second->forward(batch(1)).square().mean());
      unused.step();

      optim::SGD reference(plain->parameters(), {.lr = 0.125});
      plain->forward(batch(1)).square().mean().backward();
      reference.step();
      EXPECT_TRUE(at::allclose(flat_weights(*second), flat_weights(*plain), 1e-5, 1e-6))
          << "stage " << number;
    });
  }
}

TEST(ZeroDroppedGradients, OfOneRankAreFoundAtTheNextBackward) {
  for (const int number : {1, 2, 3}) {
    accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
      auto net = sine_layers(1, 24);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
      for (const bool slips : {false, true}) {
        accelerator.backward(net->forward(batch(0)).square().mean());
        if (slips && accelerator.is_main_process()) {
          net->zero_grad();
        }
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_THAT(
          error_of<ConfigError>(
              [&, &net = net] { accelerator.backward(net->forward(batch(1)).square().mean()); }),
          HasSubstr("the number of gradients that the program has dropped"));
    });
  }
}

TEST(ZeroDroppedGradients, DroppedBetweenBackwardAndStepMakeStepAnError) {
  for (const int number : {0, 1, 2, 3}) {
    for (const bool by_model : {false, true}) {
      accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
        auto net = sine_layers(1, 24);
        auto [model, optimizer] =
            accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
        accelerator.backward(net->forward(batch(0)).square().mean());
        if (by_model) {
          net->zero_grad();
        } else {
          optimizer.zero_grad();
        }
        EXPECT_THAT(
            error_of<ConfigError>([&, &optimizer = optimizer] { optimizer.step(); }),
            HasSubstr("step() has nothing to do: none of this optimizer's 2 parameters"))
            << "stage " << number;
      });
    }
  }
}

TEST(ZeroDroppedGradients, OtherUsesOfAPlaceholderAreRefused) {
  for (const int number : {1, 2, 3}) {
    accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
      auto net = sine_layers(1, 24);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
      accelerator.backward(net->forward(batch(0)).square().mean());
      at::Tensor weight = net->parameters()[0];
      EXPECT_TRUE(zero::is_gradient_placeholder(weight.grad()));
      EXPECT_EQ(weight.grad().sizes(), weight.sizes());
      const std::vector<std::function<void()>> uses = {
          [&] { torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0); },
          [&] { weight.mutable_grad().mul_(0.5); },
          [&] { weight.grad().detach().norm(); },
          [&] { torch::optim::SGD(net->parameters(), 1).step(); }};
      for (const auto& use : uses) {
        EXPECT_THAT(
            error_of<std::exception>(use),
            HasSubstr("of which each rank has a part under ZeRO; clip by "
                      "accelerator.clip_grad_norm_"));
      }
      weight.mutable_grad() = at::ones_like(weight);
      EXPECT_THAT(
          error_of<ConfigError>([&, &optimizer = optimizer] { optimizer.step(); }),
          HasSubstr("the program assigned a gradient to 0.weight, which step() would ignore"));
      weight.mutable_grad().reset();
      accelerator.wait_for_everyone();
    });
  }
}

TEST(ZeroDroppedGradients, PlaceholdersEndWithTheAccelerator) {
  auto net = sine_layers(1, 24);
  accelerated_ranks(1, stage(2), [&](Accelerator& accelerator) {
    auto [model, optimizer] =
        accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
    accelerator.backward(net->forward(batch(0)).square().mean());
  });
  if (net->parameters()[0].grad().defined()) {
    EXPECT_FALSE(zero::is_gradient_placeholder(net->parameters()[0].grad()));
  }
}

}  // namespace
}  // namespace lockstep
