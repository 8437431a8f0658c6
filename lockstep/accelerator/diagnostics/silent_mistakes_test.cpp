// SPDX-License-Identifier: Apache-2.0
// Slips that once ended with exit code 0 and wrong weights: each is an error that names the remedy,
// or does no harm. Correct programs that look like them go on as they did.
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/base/test_log.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

AcceleratorOptions with_steps(int64_t gradient_accumulation_steps, int zero_stage = 0) {
  AcceleratorOptions options{.gradient_accumulation_steps = gradient_accumulation_steps};
  if (zero_stage > 0) {
    options.zero = ZeroPlugin{.stage = zero_stage};
  }
  return options;
}

// --- the optimizer that was passed to prepare

template <typename Step>
void micro_step(Accelerator& accelerator, const Linear& net, const Step& step) {
  auto scope = accelerator.accumulate(net);
  accelerator.backward(loss_of(net, rows_of(accelerator)));
  step();
}

TEST(OriginalOptimizer, OfLockstepIsRefusedAtItsFirstStepInEveryMode) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int64_t steps : {1, 2}) {
      accelerated_ranks(2, with_steps(steps, stage), [](Accelerator& accelerator) {
        Linear net = two_by_two();
        optim::AdamW opt(net->parameters(), {.lr = 0.1});
        auto [model, optimizer] = accelerator.prepare(net, opt);
        micro_step(accelerator, net, [&] {
          EXPECT_THAT(
              [&] { opt.step(); },
              ThrowsMessage<ConfigError>(AllOf(
                  HasSubstr("step() was called on the optimizer that was passed to prepare"),
                  HasSubstr("use the optimizer that prepare returned"))));
        });
        accelerator.wait_for_everyone();
      });
    }
  }
}

TEST(OriginalOptimizer, MayDropGradientsOnlyWhereTheEffectIsTheSame) {
  for (const auto& [stage, steps] : {std::pair{0, 1}, {0, 2}, {2, 1}}) {
    accelerated_ranks(2, with_steps(steps, stage), [&](Accelerator& accelerator) {
      Linear net = two_by_two();
      auto opt = std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{.lr = 0.1});
      auto [model, optimizer] = accelerator.prepare(net, opt);
      micro_step(accelerator, net, [&] {
        if (stage == 0 && steps == 1) {
          opt->zero_grad();
          EXPECT_FALSE(net->weight.grad().defined());
        } else {
          EXPECT_THAT(
              [&] { opt->zero_grad(); },
              ThrowsMessage<ConfigError>(HasSubstr("zero_grad() was called on the optimizer")));
        }
      });
      accelerator.wait_for_everyone();
    });
  }
}

TEST(OriginalOptimizer, IsUsableAgainAfterThePreparedOneIsDestroyed) {
  Linear net = two_by_two();
  optim::AdamW opt(net->parameters(), {.lr = 0.1});
  {
    Accelerator accelerator({}, WorldSpec{}, Group());
    auto [model, optimizer] = accelerator.prepare(net, opt);
    EXPECT_THROW(opt.step(), ConfigError);
    micro_step(accelerator, net, [&optimizer = optimizer] { optimizer.step(); });
    EXPECT_EQ(optimizer.steps(), 1);
  }
  net->weight.mutable_grad() = at::ones({2, 2});
  const at::Tensor before = net->weight.detach().clone();
  opt.step();
  EXPECT_FALSE(at::equal(net->weight, before));
}

/// Two groups of two micro-steps with `opt` itself.
template <typename Inner>
void expect_refused_in_a_group(
    Accelerator& accelerator, Linear net, Inner& opt, const std::string& remedy) {
  for (int step = 0; step < 3; ++step) {
    micro_step(accelerator, net, [&] {
      opt.step();
      opt.zero_grad();
    });
  }
  EXPECT_THAT(
      [&] { micro_step(accelerator, net, [&] {}); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("was changed after micro-step 1 of 2"), HasSubstr(remedy))));
  accelerator.wait_for_everyone();
}

TEST(OriginalOptimizer, OfTorchIsRefusedInTheSecondGroup) {
  const auto check = [](const auto& make) {
    accelerated_ranks(2, with_steps(2), [&](Accelerator& accelerator) {
      Linear net = two_by_two();
      auto opt = make(net);
      auto [model, optimizer] = accelerator.prepare(net, opt);
      expect_refused_in_a_group(
          accelerator,
          net,
          *opt,
          "call step() of the optimizer that prepare returned, and run code that writes");
    });
  };
  check([](Linear net) { return std::make_shared<torch::optim::SGD>(net->parameters(), 0.1); });
  check([](Linear net) {
    return std::make_shared<torch::optim::SGD>(
        net->parameters(), torch::optim::SGDOptions(1e-4).momentum(0.9));
  });
  check([](Linear net) { return std::make_shared<torch::optim::Adam>(net->parameters()); });
}

TEST(OptimizerNotPrepared, IsRefusedInTheSecondGroup) {
  accelerated_ranks(2, with_steps(2), [](Accelerator& accelerator) {
    Linear net = two_by_two();
    optim::AdamW opt(net->parameters(), {.lr = 0.1});
    accelerator.prepare(net);
    expect_refused_in_a_group(accelerator, net, opt, "pass the parameter's optimizer to prepare");
  });
}

TEST(OptimizerNotPrepared, TrainsAsAPreparedOneWhereEveryBackwardAverages) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear net = two_by_two(), other = two_by_two();
    torch::optim::SGD opt(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    accelerator.prepare(net);
    auto [model, optimizer] = accelerator.prepare(
        other, torch::optim::SGD(other->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(loss_of(net, rows_of(accelerator)));
      opt.step();
      opt.zero_grad();
      accelerator.backward(loss_of(model, rows_of(accelerator)));
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_TRUE(at::equal(net->weight, other->weight));
    EXPECT_TRUE(is_same_on_all(accelerator, net->weight));
  });
}

TEST(Accumulation, WritesOfTheProgramWhereTheyDoNoHarmAreAllowed) {
  accelerated_ranks(2, with_steps(2), [](Accelerator& accelerator) {
    Linear net = two_by_two();
    auto [model, optimizer] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(1)));
    at::Tensor average = net->weight.detach().clone();
    for (int step = 0; step < 6; ++step) {
      micro_step(accelerator, net, [&, &optimizer = optimizer] {
        optimizer.step();
        optimizer.zero_grad();
        const torch::NoGradGuard no_grad;
        for (at::Tensor& parameter : net->parameters()) {
          parameter.clamp_(-0.3, 0.3);  // As a Wasserstein critic's.
        }
        const at::Tensor kept = net->weight.clone();  // To evaluate an average, and back.
        net->weight.copy_(average);
        net->weight.copy_(kept);
        average.lerp_(net->weight, 0.1);
        if (step == 3) {
          net->weight.fill_(0.2);  // At a group's end.
        }
      });
    }
    EXPECT_EQ(optimizer.steps(), 3);
    EXPECT_TRUE(is_same_on_all(accelerator, net->weight));
  });
}

TEST(Accumulation, WeightsChangedForOneForwardAndBackwardAreNotAnUpdate) {
  accelerated_ranks(2, with_steps(2), [](Accelerator& accelerator) {
    Linear net = two_by_two();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    for (int step = 0; step < 6; ++step) {
      micro_step(accelerator, net, [&, &optimizer = optimizer] {
        const at::Tensor kept = net->weight.detach().clone();
        {
          const torch::NoGradGuard no_grad;
          net->weight.add_(net->weight.grad().sign(), 0.1);  // As adversarial training does.
        }
        accelerator.backward(loss_of(net, rows_of(accelerator)));
        {
          const torch::NoGradGuard no_grad;
          net->weight.copy_(kept);
        }
        optimizer.step();
        optimizer.zero_grad();
      });
    }
    EXPECT_EQ(optimizer.steps(), 3);
  });
}

TEST(OptimizerStep, IsTheSameOnAllRanksIfTheLossOfOneDependsOnNoParameter) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear net = two_by_two();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const at::Tensor loss = loss_of(net, rows_of(accelerator));
    accelerator.backward(accelerator.is_main_process() ? at::zeros({}) : loss);
    EXPECT_NO_THROW(optimizer.step());
    accelerator.backward(loss_of(net, rows_of(accelerator)));
    optimizer.step();
    EXPECT_TRUE(is_same_on_all(accelerator, net->weight));
  });
}

TEST(Accumulation, AStateLoadedWithinAGroupIsNotAnUpdate) {
  const TestFolder folder;
  accelerated_ranks(2, with_steps(2), [&](Accelerator& accelerator) {
    Linear net = two_by_two();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    accelerator.save_state(folder.path() / "state");
    for (int step = 0; step < 3; ++step) {
      micro_step(accelerator, net, [&optimizer = optimizer] {
        optimizer.step();
        optimizer.zero_grad();
      });
    }
    accelerator.load_state(folder.path() / "state");
    for (int step = 0; step < 2; ++step) {
      micro_step(accelerator, net, [&optimizer = optimizer] {
        optimizer.step();
        optimizer.zero_grad();
      });
    }
    EXPECT_EQ(optimizer.steps(), 1);
  });
}

// --- loss.backward()

TEST(PlainBackward, WithinAccumulateIsRefusedInEveryMode) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int size : {1, 2}) {
      accelerated_ranks(size, with_steps(2, stage), [](Accelerator& accelerator) {
        Linear net = two_by_two();
        auto [model, optimizer] =
            accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.1}));
        {
          auto scope = accelerator.accumulate(net);
          EXPECT_THAT(
              [&] { loss_of(net, rows_of(accelerator)).backward(); },
              ThrowsMessage<ConfigError>(AllOf(
                  HasSubstr("not divided by the 2 micro-steps"),
                  HasSubstr("accelerator.backward(loss)"))));
        }
        accelerator.wait_for_everyone();
      });
    }
  }
}

TEST(PlainBackward, OfAScaledLossAndOutsideOfGroupsIsAllowed) {
  accelerated_ranks(2, with_steps(2), [](Accelerator& accelerator) {
    Linear net = two_by_two();
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.1}));
    for (int step = 0; step < 2; ++step) {
      auto scope = accelerator.accumulate(net);
      accelerator.scale_loss(loss_of(model, rows_of(accelerator))).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(optimizer.steps(), 1);
    loss_of(model, rows_of(accelerator)).backward();  // To look at gradients.
    EXPECT_TRUE(is_same_on_all(accelerator, net->weight.grad()));
    optimizer.zero_grad();
  });
}

// --- an optimizer of another model

TEST(AnotherModelsOptimizer, IsRefusedAtItsFirstStep) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear net = two_by_two(), other = two_by_two();
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(other->parameters(), {.lr = 0.1}));
    accelerator.backward(loss_of(model, rows_of(accelerator)));
    EXPECT_THAT(
        [&optimizer = optimizer] { optimizer.step(); },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr("none of this optimizer's 2 parameters has a gradient"),
            HasSubstr("the model whose loss is passed to backward"))));
    accelerator.wait_for_everyone();
  });
}

TEST(AnotherModelsOptimizer, TogetherWithTheRightOneIsRefusedAtItsSecondStep) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear net = two_by_two(), other = two_by_two();
    auto [model, second, right, wrong] = accelerator.prepare(
        net,
        other,
        optim::AdamW(net->parameters(), {.lr = 0.1}),
        optim::AdamW(other->parameters(), {.lr = 0.1}));
    accelerator.backward(loss_of(model, rows_of(accelerator)));
    wrong.step();  // The right one's may follow.
    accelerator.backward(loss_of(model, rows_of(accelerator)));
    EXPECT_THROW(wrong.step(), ConfigError);
    accelerator.wait_for_everyone();
  });
}

TEST(AnotherModelsOptimizer, IsAllowedIfModelsAlternate) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear first = two_by_two(), second = two_by_two();
    auto [a, b, a_optimizer, b_optimizer] = accelerator.prepare(
        first,
        second,
        torch::optim::SGD(first->parameters(), 0.1),
        torch::optim::SGD(second->parameters(), 0.1));
    for (int step = 0; step < 6; ++step) {
      accelerator.backward(loss_of(step < 4 ? a : b, rows_of(accelerator)));
      b_optimizer.step();
      a_optimizer.step();
      a_optimizer.zero_grad();
      b_optimizer.zero_grad();
    }
    EXPECT_FALSE(at::equal(second->weight, two_by_two()->weight));
  });
}

/// The critic's gradients of the generator's loss are dropped, as GANs do.
TEST(AnotherModelsOptimizer, AdversarialTrainingInGroupsContinues) {
  accelerated_ranks(2, with_steps(2), [](Accelerator& accelerator) {
    Linear generator = two_by_two(), critic = two_by_two();
    auto [g, c, g_optimizer, c_optimizer] = accelerator.prepare(
        generator,
        critic,
        torch::optim::SGD(generator->parameters(), 0.1),
        optim::AdamW(critic->parameters(), {.lr = 0.1}));
    for (int step = 0; step < 4; ++step) {
      auto scope = accelerator.accumulate(g, c);
      accelerator.backward(loss_of(c, g->forward(rows_of(accelerator)).detach()));
      c_optimizer.step();
      c_optimizer.zero_grad();
      accelerator.backward(-loss_of(c, g->forward(rows_of(accelerator))));
      g_optimizer.step();
      g_optimizer.zero_grad();
      c_optimizer.zero_grad();
    }
    EXPECT_EQ(g_optimizer.steps(), 2);
    EXPECT_EQ(c_optimizer.steps(), 2);
    EXPECT_TRUE(is_same_on_all(accelerator, generator->weight));
    EXPECT_TRUE(is_same_on_all(accelerator, critic->weight));
  });
}

TEST(AnotherModelsOptimizer, FrozenTemporarilyIsAllowed) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  Linear frozen = two_by_two(), head = two_by_two();
  auto [model, optimizer] =
      accelerator.prepare(frozen, torch::optim::SGD(frozen->parameters(), 0.1));
  for (at::Tensor& parameter : frozen->parameters()) {
    parameter.set_requires_grad(false);
  }
  accelerator.backward(loss_of(head, model->forward(at::ones({1, 2}))));
  optimizer.step();
  EXPECT_EQ(optimizer.steps(), 1);
}

// --- calls of one rank

TEST(CallsOfOneRank, ASaveIsNamedOnBothRanks) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    torch::nn::Linear net = two_by_two();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    EXPECT_THAT(
        error_of<CommError>([&] {
          if (!accelerator.is_main_process()) {  // That may save alone, see lone_save_test.cpp.
            accelerator.save_state(folder.path() / "save");
          }
          accelerator.backward(loss_of(net, rows_of(accelerator)));
        }),
        AllOf(HasSubstr("rank 0 calls backward ("), HasSubstr("rank 1 calls save_state (")));
  });
}

// --- seeds and losses

TEST(Seeds, ThatDifferBetweenRanksAreRefusedWhereTheyMatter) {
  const auto loader_with = [](uint64_t seed, bool shuffle) {
    return data::Loader(
        data::TensorDataset(at::zeros({8, 1}), at::zeros({8})),
        {.batch_size = 2, .shuffle = shuffle, .seed = seed});
  };
  const auto seed_of = [](Accelerator& accelerator) {
    return accelerator.process_index() == 1 ? uint64_t{7} : uint64_t{0};
  };
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    accelerator.prepare(loader_with(seed_of(accelerator), /*shuffle=*/false));
    accelerator.prepare(loader_with(7, /*shuffle=*/true));
    EXPECT_THAT(
        [&] { accelerator.prepare(loader_with(seed_of(accelerator), /*shuffle=*/true)); },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr("the seed of loader 2 must be equal"),
            HasSubstr("rank 0 has 0, rank 1 has 7"))));
  });
  accelerated_ranks(2, {.dispatch_batches = true}, [&](Accelerator& accelerator) {
    EXPECT_NO_THROW(accelerator.prepare(loader_with(seed_of(accelerator), /*shuffle=*/true)));
  });
}

TEST(NonFiniteLoss, IsReportedAtOnceAndAtTheEndIfItPersists) {
  for (const bool stays : {false, true}) {
    const auto lines = logged_by([&] {
      Accelerator accelerator({}, WorldSpec{}, Group());
      Linear net = two_by_two();
      accelerator.prepare(net);
      for (const double factor : {1.0, kInfinity, stays ? kInfinity : 1.0}) {
        accelerator.backward(loss_of(net, at::ones({1, 2})) * factor);
      }
      accelerator.end_training();
    });
    ASSERT_EQ(lines.size(), stays ? 2 : 1);
    EXPECT_THAT(lines[0], AllOf(HasSubstr("the loss of backward 2 is inf"), HasSubstr("kStop")));
    if (stays) {
      EXPECT_THAT(
          lines[1],
          AllOf(HasSubstr("ends with a loss that is NaN or infinite"), HasSubstr("backward 2")));
    }
  }
}

TEST(NonFiniteLoss, OfAnotherRankAloneIsReportedAtTheEnd) {
  const auto lines = logged_by([] {
    accelerated_ranks(2, {}, [](Accelerator& accelerator) {
      Linear net = two_by_two();
      accelerator.prepare(net);
      const double factor = accelerator.process_index() == 1 ? kInfinity : 1.0;
      accelerator.backward(loss_of(net, at::ones({1, 2})) * factor);
      accelerator.end_training();
    });
  });
  EXPECT_THAT(lines, Contains(HasSubstr("ends with a loss that is NaN or infinite")));
}

}  // namespace
}  // namespace lockstep
