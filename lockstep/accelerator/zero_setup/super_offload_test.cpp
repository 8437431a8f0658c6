// SPDX-License-Identifier: Apache-2.0
// Updates that begin while backward runs, as who writes a training loop meets them.
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/optim/update/speculative_updates.h"
#include "tests/nets.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kLayerWidth = 24;
// Each in a bucket of its own: the first five are reduced long before backward ends.
constexpr int64_t kOffloadedLayers = 8;
constexpr int64_t kCapBytes = 2600;

class SuperOffloadTraining {
 public:
  using NewOptimizer =
      std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

  SuperOffloadTraining(
      Accelerator& accelerator, const NewOptimizer& new_optimizer, at::ScalarType dtype)
      : accelerator_(accelerator),
        net_(test::sine_layers(kOffloadedLayers, kLayerWidth, {.scale = 1.0 / 12})),
        dtype_(dtype) {
    net_->to(dtype);
    optimizer_ = std::get<1>(accelerator.prepare(net_, new_optimizer(net_->parameters())));
  }

  void backward(int64_t step) {
    const auto rank = static_cast<double>(accelerator_.process_index());
    const at::Tensor x = at::sin(at::arange(3 * kLayerWidth, at::kFloat) * (1 + rank) + step);
    const at::Tensor y = net_->forward(x.reshape({3, kLayerWidth}).to(dtype_));
    accelerator_.backward(y.square().mean());
  }
  void step() {
    optimizer_.step();
    optimizer_.zero_grad();
  }
  void train(int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      backward(i);
      step();
    }
  }
  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> weights;
    for (const at::Tensor& parameter : net_->parameters()) {
      weights.push_back(parameter.detach().clone());
    }
    return weights;
  }
  int64_t early() const {
    const auto updates = dynamic_cast<optim::FlatOptimizer&>(optimizer_.inner()).speculative();
    return updates == nullptr ? 0 : updates->taken();
  }
  Accelerator& accelerator() { return accelerator_; }
  Optimizer& optimizer() { return optimizer_; }
  torch::nn::Sequential& net() { return net_; }

 private:
  Accelerator& accelerator_;
  torch::nn::Sequential net_;
  at::ScalarType dtype_;
  Optimizer optimizer_;
};

std::shared_ptr<torch::optim::Optimizer> adamw(std::vector<at::Tensor> parameters) {
  return std::make_shared<optim::AdamW>(
      std::move(parameters), optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
}

struct Outcome {
  std::vector<at::Tensor> weights;
  int64_t early = 0;
};

struct Setting {
  int stage = 2;
  int world = 2;
  bool parameters_on_host = false;
  at::ScalarType dtype = at::kFloat;
  SuperOffloadTraining::NewOptimizer new_optimizer = adamw;
};

ZeroPlugin plugin_of(const Setting& setting, bool early) {
  ZeroPlugin plugin{.stage = setting.stage, .bucket_cap_bytes = kCapBytes};
  plugin.offload_optimizer = {.device = OffloadDevice::kCpu, .super_offload = early};
  if (setting.parameters_on_host) {
    plugin.offload_param = {.device = OffloadDevice::kCpu};
  }
  return plugin;
}

Outcome outcome_of(
    const Setting& setting, bool early, const std::function<void(SuperOffloadTraining&)>& body) {
  std::vector<Outcome> all(static_cast<size_t>(setting.world));
  const AcceleratorOptions options{.zero = plugin_of(setting, early)};
  accelerated_ranks(setting.world, options, [&](Accelerator& accelerator) {
    SuperOffloadTraining training(accelerator, setting.new_optimizer, setting.dtype);
    body(training);
    all[static_cast<size_t>(accelerator.process_index())] = {training.weights(), training.early()};
  });
  return all[0];
}

/// The same with and without; how many updates began early.
int64_t speculative_of(
    const Setting& setting, const std::function<void(SuperOffloadTraining&)>& body) {
  const Outcome plain = outcome_of(setting, false, body);
  const Outcome early = outcome_of(setting, true, body);
  EXPECT_EQ(plain.early, 0);
  for (size_t i = 0; i < plain.weights.size(); ++i) {
    EXPECT_TRUE(plain.weights[i].isfinite().all().item<bool>());
    EXPECT_TRUE(at::equal(plain.weights[i], early.weights[i])) << "parameter " << i;
  }
  return early.early;
}

// After a first step, which makes the state; those that may still travel at the end do not count.
constexpr int64_t kAtLeast = kOffloadedLayers - 3;

TEST(SuperOffload, UpdatesBeginWithinBackwardAndAreBitExact) {
  const auto body = [](SuperOffloadTraining& training) { training.train(0, 6); };
  for (const int world : {1, 2, 3}) {
    for (Setting setting :
         {Setting{.stage = 1},
          Setting{.stage = 2},
          Setting{.stage = 3},
          Setting{.stage = 3, .parameters_on_host = true}}) {
      setting.world = world;
      SCOPED_TRACE(testing::Message() << "stage " << setting.stage << ", ranks " << world);
      EXPECT_GE(speculative_of(setting, body), 5 * kAtLeast);
    }
  }
}

TEST(SuperOffload, OtherRulesAndFp32MastersBeginEarlyToo) {
  const auto body = [](SuperOffloadTraining& training) { training.train(0, 5); };
  const auto momentum = [](std::vector<at::Tensor> parameters) {
    return std::make_shared<optim::SGD>(
        std::move(parameters), optim::SGDOptions{.lr = 1e-3, .momentum = 0.9, .nesterov = true});
  };
  EXPECT_GE(speculative_of({.new_optimizer = momentum}, body), 4 * kAtLeast);
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    // Two layers are in a bucket.
    EXPECT_GE(
        speculative_of({.stage = stage, .dtype = at::kBFloat16}, body),
        4 * (kOffloadedLayers / 2 - 3));
  }
}

TEST(SuperOffload, ClippedGradientsRepeatTheUpdate) {
  const auto clipping = [](double max_norm) {
    return [max_norm](SuperOffloadTraining& training) {
      for (int64_t i = 0; i < 4; ++i) {
        training.backward(i);
        training.accelerator().clip_grad_norm_(training.net()->parameters(), max_norm);
        training.step();
      }
    };
  };
  EXPECT_EQ(speculative_of({}, clipping(1e-3)), 0);
  EXPECT_GE(speculative_of({}, clipping(1e6)), 3 * kAtLeast);  // Nothing was to be clipped.
}

TEST(SuperOffload, ChangesBetweenBackwardAndStepApply) {
  for (const int stage : {2, 3}) {
    SCOPED_TRACE(stage);
    const Setting setting{.stage = stage};
    const auto with = [](const std::function<void(SuperOffloadTraining&)>& change) {
      return [change](SuperOffloadTraining& training) {
        training.train(0, 1);
        training.backward(1);
        change(training);
        training.step();
        training.backward(2);
        training.step();
      };
    };
    const int64_t untouched = speculative_of(setting, with([](SuperOffloadTraining&) {}));
    const auto other_rate = [](SuperOffloadTraining& training) {
      training.optimizer().set_learning_rates({0.5});
    };
    EXPECT_LE(speculative_of(setting, with(other_rate)), untouched / 2 + kOffloadedLayers / 2);
    const auto scale = [](SuperOffloadTraining& training) {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& shard_slice : training.optimizer().parameters()) {
        shard_slice.mutable_grad().mul_(0.25);
      }
    };
    EXPECT_LE(speculative_of(setting, with(scale)), untouched / 2 + kOffloadedLayers / 2);
    const auto write = [](SuperOffloadTraining& training) {
      training.accelerator().with_gathered_parameters(
          training.net()->parameters(),
          [&] {
            const torch::NoGradGuard no_grad;
            for (at::Tensor& parameter : training.net()->parameters()) {
              parameter.add_(0.125);
            }
          },
          0);
    };
    EXPECT_LE(speculative_of(setting, with(write)), untouched / 2 + kOffloadedLayers / 2);
  }
}

TEST(SuperOffload, WritesBeforeBackwardApply) {
  for (const Setting& setting :
       {Setting{.stage = 1, .dtype = at::kBFloat16},
        Setting{.stage = 2, .dtype = at::kBFloat16},
        Setting{.stage = 3},
        Setting{.stage = 3, .dtype = at::kBFloat16}}) {
    SCOPED_TRACE(setting.stage);
    speculative_of(setting, [](SuperOffloadTraining& training) {
      training.train(0, 2);
      {
        const torch::NoGradGuard no_grad;
        for (at::Tensor& parameter : training.net()->parameters()) {
          parameter.mul_(0.5);
        }
      }
      training.train(2, 5);
    });
  }
}

TEST(SuperOffload, AFailedBackwardLeavesNothingInTheSums) {
  for (const int stage : {2, 3}) {
    SCOPED_TRACE(stage);
    std::vector<std::vector<at::Tensor>> outcomes;
    for (const bool early : {false, true}) {
      AcceleratorOptions options{.zero = plugin_of({.stage = stage}, early)};
      options.gradient_accumulation_plugin = {.num_steps = 2, .sync_each_batch = true};
      accelerated_ranks(2, options, [&](Accelerator& accelerator) {
        SuperOffloadTraining training(accelerator, adamw, at::kFloat);
        for (int64_t i = 0; i < 6; ++i) {
          const auto scope = accelerator.accumulate();
          if (i == 3) {  // Of the first layer, when most buckets are through.
            const auto hook = training.net()->parameters()[0].register_hook(
                [](const at::Tensor&) { throw std::runtime_error("a hook failed"); });
            EXPECT_THROW(training.backward(9), std::exception);
            training.net()->parameters()[0].remove_hook(hook);
          }
          training.backward(i);
          training.step();
        }
        const std::vector<at::Tensor> weights = training.weights();
        if (accelerator.is_main_process()) {
          outcomes.push_back(weights);
        }
      });
    }
    for (size_t i = 0; i < outcomes[0].size(); ++i) {
      EXPECT_TRUE(at::equal(outcomes[0][i], outcomes[1][i])) << i;
    }
  }
}

TEST(SuperOffload, AMissingStepLeavesNothingBehind) {
  const int64_t early = speculative_of({}, [](SuperOffloadTraining& training) {
    training.train(0, 2);
    training.backward(2);  // Dropped.
    training.optimizer().zero_grad();
    training.backward(3);  // Added to.
    training.backward(4);
    training.step();
    training.train(5, 7);
  });
  EXPECT_GE(early, 4 * kAtLeast);
}

TEST(SuperOffload, WithinAGroupOfMicroStepsOnlyTheLastBackwardBeginsUpdates) {
  for (const bool each : {false, true}) {
    const auto body = [](SuperOffloadTraining& training) {
      for (int64_t i = 0; i < 6; ++i) {
        const auto scope = training.accelerator().accumulate();
        training.backward(i);
        training.step();
      }
    };
    std::vector<Outcome> outcomes;
    for (const bool early : {false, true}) {
      AcceleratorOptions options{.zero = plugin_of({.stage = 2}, early)};
      options.gradient_accumulation_plugin = {.num_steps = 2, .sync_each_batch = each};
      accelerated_ranks(2, options, [&](Accelerator& accelerator) {
        SuperOffloadTraining training(accelerator, adamw, at::kFloat);
        body(training);
        if (accelerator.is_main_process()) {
          outcomes.push_back({training.weights(), training.early()});
        }
      });
    }
    EXPECT_GE(outcomes[1].early, 2 * kAtLeast);
    EXPECT_LE(outcomes[1].early, 2 * 2 * kOffloadedLayers);
    for (size_t i = 0; i < outcomes[0].weights.size(); ++i) {
      EXPECT_TRUE(at::equal(outcomes[0].weights[i], outcomes[1].weights[i])) << i;
    }
  }
}

TEST(SuperOffload, StepContinuesFromACheckpointLoadedAfterBackward) {
  const TestFolder folder;
  int saved = 0;
  const int64_t early = speculative_of({.world = 1}, [&](SuperOffloadTraining& training) {
    const auto path = folder / std::to_string(saved++);
    training.train(0, 2);
    training.accelerator().save_state(path);
    training.train(2, 4);
    training.backward(4);
    training.accelerator().load_state(path);
    training.train(2, 5);
  });
  EXPECT_GE(early, 6 * kAtLeast);
}

TEST(SuperOffload, NeedsStateInMemory) {
  const TestFolder folder;
  ZeroPlugin plugin{.stage = 2};
  plugin.offload_optimizer = {
      .device = OffloadDevice::kNvme, .nvme_path = folder.path(), .super_offload = true};
  accelerated_ranks(1, {.zero = plugin}, [](Accelerator& accelerator) {
    EXPECT_THAT(
        [&] { SuperOffloadTraining(accelerator, adamw, at::kFloat); },
        ThrowsMessage<ConfigError>(HasSubstr("super_offload and device nvme, expected cpu")));
  });
  plugin = {.stage = 3};
  plugin.offload_optimizer = {.device = OffloadDevice::kCpu, .super_offload = true};
  plugin.offload_param = {.device = OffloadDevice::kNvme, .nvme_path = folder.path()};
  EXPECT_THAT(
      [&] { accelerated_ranks(1, {.zero = plugin}, [](Accelerator&) {}); },
      ThrowsMessage<ConfigError>(HasSubstr("updates parameters in memory")));
}

}  // namespace
}  // namespace lockstep
