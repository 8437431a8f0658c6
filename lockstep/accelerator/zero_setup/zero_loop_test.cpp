// SPDX-License-Identifier: Apache-2.0
// Training loops that are right without ZeRO: what they mean is done, or said to be impossible, on
// all ranks.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/zero_setup/test_zero.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "tests/nets.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor batch_of_width(int64_t width, int64_t step = 0) {
  return at::sin(at::arange(3 * width, at::kFloat) + static_cast<double>(step)).reshape({3, width});
}

TEST(ZeroLoop, AFullStateDictIsRefusedIfFp32MastersWouldBeLost) {
  for (const int number : {1, 2, 3}) {
    for (const bool masters : {true, false}) {
      const TestFolder folder;
      AcceleratorOptions options = stage(number);
      options.zero->state_dict_type = StateDictType::kFullStateDict;
      options.zero->fp32_masters = masters;
      accelerated_ranks(2, options, [&](Accelerator& accelerator) {
        auto net = sine_layers(1, 16);
        net->to(at::kBFloat16);
        const auto prepare = [&] {
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
        };
        if (masters) {
          EXPECT_THAT(
              prepare,
              ThrowsMessage<ConfigError>(
                  AllOf(HasSubstr("FULL_STATE_DICT"), HasSubstr("masters would be lost"))))
              << "stage " << number;
        } else {
          prepare();
          accelerator.save_state(folder.path() / "saved");
          EXPECT_TRUE(std::filesystem::exists(folder.path() / "saved" / "model.safetensors"));
        }
      });
    }
  }
}

TEST(ZeroLoop, TheNormIsThatOfAllRanksWhereSomeHaveNoGradient) {
  for (const int number : {1, 2, 3}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      accelerated_ranks(3, stage(number), [&](Accelerator& accelerator) {
        torch::nn::Linear net(4, 3);  // One rank has all of it.
        net->to(dtype);
        auto [model, optimizer] =
            accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.5}));
        accelerator.backward(model->forward(at::ones({2, 4}, dtype)).sum());
        const double infinity = std::numeric_limits<double>::infinity();
        const at::Tensor largest = accelerator.clip_grad_norm_({model->bias}, 1e9, infinity);
        EXPECT_EQ(largest.scalar_type(), dtype);
        EXPECT_NEAR(largest.item<double>(), 2, 1e-5);
        const at::Tensor norm = accelerator.clip_grad_norm_({model->bias}, 1);
        EXPECT_EQ(norm.scalar_type(), dtype);
        EXPECT_NEAR(norm.item<double>(), std::sqrt(12), 1e-5);
        const at::Tensor before = model->bias.detach().clone();
        optimizer.step();
        const at::Tensor step = (before - model->bias.detach()).norm();
        EXPECT_NEAR(step.item<double>(), 0.5, 1e-5) << "it was clipped to 1";
      });
    }
  }
}

TEST(ZeroLoop, ABackwardThatWouldAddToUsedGradientsIsRefused) {
  for (const int number : {1, 2, 3}) {
    for (const int64_t width : {2, 24}) {  // All on one rank, and some on each.
      accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
        auto net = sine_layers(1, width);
        auto [model, optimizer] =
            accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
        const auto backward = [&, &ours = model](int64_t step) {
          accelerator.backward(ours->forward(batch_of_width(width, step)).square().sum());
        };
        backward(0);
        optimizer.step();
        EXPECT_THAT(
            [&] { backward(1); },
            ThrowsMessage<ConfigError>(AllOf(
                HasSubstr("would add to gradients"),
                HasSubstr("call zero_grad() of the prepared optimizer"))));
        optimizer.zero_grad();
        backward(1);
        optimizer.step();

        auto plain = sine_layers(1, width);
        optim::SGD reference(plain->parameters(), {.lr = 0.125});
        for (const int64_t step : {0, 1}) {
          plain->zero_grad();
          plain->forward(batch_of_width(width, step)).square().sum().backward();
          reference.step();
        }
        EXPECT_TRUE(at::equal(flat_weights(*model), flat_weights(*plain))) << "stage " << number;
      });
    }
  }
}

TEST(ZeroLoop, AProgramMayDropOrWriteGradientsOfShardSlices) {
  for (const int number : {1, 2, 3}) {
    accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
      auto net = sine_layers(1, 24);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
      for (int64_t step = 0; step < 3; ++step) {
        accelerator.backward(model->forward(batch_of_width(24, step)).sum());
        optimizer.step();
        const torch::NoGradGuard no_grad;
        for (const at::Tensor& shard_slice : optimizer.parameters()) {
          if (step == 0) {
            shard_slice.mutable_grad().reset();
          } else {
            shard_slice.grad().zero_();
          }
        }
      }
      EXPECT_NO_THROW(accelerator.backward(model->forward(batch_of_width(24)).sum()));
      EXPECT_NO_THROW(accelerator.backward(model->forward(batch_of_width(24)).sum()))
          << "no step between";
    });
  }
}

TEST(ZeroLoop, UnfreezingAfterPrepareIsReported) {
  for (const int number : {0, 1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(number));
    accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
      auto net = sine_layers(2, 24);
      at::Tensor frozen = net->parameters()[0].set_requires_grad(false);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
      const auto step = [&, &ours = model, &updated = optimizer] {
        accelerator.backward(ours->forward(batch_of_width(24)).sum());
        updated.step();
        updated.zero_grad();
      };
      step();
      const at::Tensor before = flat_weights(*model);
      frozen.set_requires_grad(true);
      EXPECT_THAT(
          step,
          ThrowsMessage<ConfigError>(
              AllOf(HasSubstr("0.weight"), HasSubstr("when the model was prepared"))));
      EXPECT_TRUE(at::equal(flat_weights(*model), before));
      frozen.set_requires_grad(false);
      frozen.mutable_grad().reset();
      optimizer.zero_grad();
      step();
      EXPECT_FALSE(at::equal(flat_weights(*model), before));
    });
  }
}

TEST(ZeroLoop, ParametersCannotBeAddedToAShardedModel) {
  for (const int number : {1, 2, 3}) {
    accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
      auto net = sine_layers(2, 24);
      const at::Tensor frozen = net->parameters()[0].set_requires_grad(false);
      std::vector<at::Tensor> trained = net->parameters();
      trained.erase(trained.begin());
      auto [model, optimizer] = accelerator.prepare(net, optim::SGD(trained, {.lr = 0.125}));
      accelerator.backward(model->forward(batch_of_width(24)).sum());
      optimizer.inner().add_param_group(torch::optim::OptimizerParamGroup({frozen}));
      Optimizer& updated = optimizer;
      for (int attempt = 0; attempt < 2; ++attempt) {
        EXPECT_THAT(
            [&] { updated.step(); },
            ThrowsMessage<ConfigError>(HasSubstr("was added to a sharded optimizer")))
            << "stage " << number;
      }
    });
  }
}

TEST(ZeroLoop, AParameterMayBeFrozenForAWhile) {
  const auto trained = [](int world, int number) {
    at::Tensor weights;
    accelerated_ranks(world, stage(number), [&](Accelerator& accelerator) {
      auto net = sine_layers(2, 24);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.125}));
      for (int64_t step = 0; step < 4; ++step) {
        model->parameters()[0].set_requires_grad(step == 0 || step == 3);
        accelerator.backward(model->forward(batch_of_width(24, step)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      const at::Tensor own = flat_weights(*model);
      if (accelerator.is_main_process()) {
        weights = own.clone();
      }
    });
    return weights;
  };
  const at::Tensor expected = trained(1, 0);
  for (const int number : {0, 1, 2, 3}) {
    EXPECT_TRUE(at::equal(trained(2, number), expected)) << "stage " << number;
  }
}

/// A layer without outputs beside one with some.
struct WithNothingImpl : torch::nn::Module {
  WithNothingImpl() {
    nothing = register_module("nothing", torch::nn::Linear(24, 0));
    linear = register_module("linear", torch::nn::Linear(24, 24));
    test::fill_with_sines(*this, {.scale = 1.0 / 4});
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x).sum() + nothing(x).sum(); }
  torch::nn::Linear nothing{nullptr}, linear{nullptr};
};
TORCH_MODULE(WithNothing);

TEST(ZeroLoop, AnEmptyParameterIsSupported) {
  for (const int number : {1, 2, 3}) {
    accelerated_ranks(2, stage(number), [&](Accelerator& accelerator) {
      WithNothing net;
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
      for (int64_t step = 0; step < 2; ++step) {
        const at::Tensor before = model->linear->weight.detach().clone();
        accelerator.backward(model->forward(batch_of_width(24, step)));
        EXPECT_GT(accelerator.clip_grad_norm_(model->parameters(), 1).item<double>(), 0);
        optimizer.step();
        optimizer.zero_grad();
        EXPECT_FALSE(at::equal(model->linear->weight.detach(), before));
      }
    });
  }
}

TEST(ZeroLoop, ZeroPlusPlusRoundsNothingInOneProcess) {
  const auto trained = [](const ZeroPlugin& plugin) {
    at::Tensor weights;
    accelerated_ranks(1, {.zero = plugin}, [&](Accelerator& accelerator) {
      auto net = sine_layers(2, 24);
      net->parameters()[0].set_requires_grad(false);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
      for (int64_t step = 0; step < 3; ++step) {
        accelerator.backward(model->forward(batch_of_width(24, step)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      weights = flat_weights(*model).clone();
    });
    return weights;
  };
  ZeroPlugin plugin{.stage = 3, .bucket_cap_bytes = 4000};
  plugin.offload_optimizer = {.device = OffloadDevice::kCpu};  // Else nothing is divided at all.
  const at::Tensor expected = trained(plugin);
  plugin.zero_quantized_weights = true;
  plugin.zero_quantized_gradients = true;
  plugin.zero_quantized_nontrainable_weights = true;
  EXPECT_TRUE(at::equal(trained(plugin), expected));
}

}  // namespace
}  // namespace lockstep
