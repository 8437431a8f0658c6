// SPDX-License-Identifier: Apache-2.0
// Loops whose processes would train different models: each is an error on all processes.
#include "lockstep/accelerator/diagnostics/replica_check.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/local_sgd/local_sgd.h"
#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/base/test_log.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::Linear;

AcceleratorOptions with_stage(int stage) {
  AcceleratorOptions options;
  if (stage > 0) {
    options.zero = ZeroPlugin{.stage = stage};
  }
  return options;
}

/// A loop with a mistake, which rank 1 makes.
using Slip = std::function<void(Accelerator&, Optimizer&, Linear&)>;

/// Runs three iterations on two ranks; after the first backward rank 1 makes `slip`. Returns rank
/// 0's message.
std::string message_after(int stage, const Slip& slip, double rate_of_rank_1 = 0.1) {
  std::string message;
  accelerated_ranks(2, with_stage(stage), [&](Accelerator& accelerator) {
    const std::string own = error_of<ConfigError>([&] {
      Linear net = two_by_two();
      const double rate = accelerator.process_index() == 1 ? rate_of_rank_1 : 0.1;
      optim::SGD opt(net->parameters(), {.lr = rate, .momentum = 0.9});
      auto [model, optimizer] = accelerator.prepare(net, opt);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(loss_of(net, rows_of(accelerator)));
        if (step == 0 && accelerator.process_index() == 1) {
          slip(accelerator, optimizer, net);
        }
        optimizer.step();
        optimizer.zero_grad();
      }
      accelerator.end_training();
    });
    EXPECT_NE(own, "no error") << "rank " << accelerator.process_index();
    if (accelerator.is_main_process()) {
      message = own;
    }
  });
  return message;
}

void nothing(Accelerator& /*accelerator*/, Optimizer& /*optimizer*/, Linear& /*net*/) {}

TEST(Replicas, OptimizersWithOtherSettingsAreRefusedAtPrepare) {
  for (const int stage : {0, 2, 3}) {
    EXPECT_THAT(
        message_after(stage, nothing, 0.2),
        AllOf(
            HasSubstr("[prepare] the settings of optimizer 0 must be equal on all ranks"),
            HasSubstr("\"lr\":0.1"),
            HasSubstr("\"lr\":0.2")));
  }
}

TEST(Replicas, ARateOfOneRankIsFoundAtTheNextBackward) {
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_THAT(
        message_after(
            stage,
            [](Accelerator&, Optimizer& optimizer, Linear&) {
              optimizer.set_learning_rates({0.05});
            }),
        AllOf(
            HasSubstr("the learning rates of optimizer 0"),
            HasSubstr("rank 0 has [0.1], rank 1 has [0.05]"),
            HasSubstr("reduce a loss over the ranks")))
        << "stage " << stage;
  }
}

TEST(Replicas, AStepOrClippingOfOneRankIsFoundAtTheNextBackward) {
  EXPECT_THAT(
      message_after(0, [](Accelerator&, Optimizer& optimizer, Linear&) { optimizer.step(); }),
      HasSubstr("the number of updates of optimizer 0 must be equal on all ranks; rank 0 has 1, "
                "rank 1 has 2; call step() in the same iterations"));
  EXPECT_THAT(
      message_after(
          0,
          [](Accelerator& accelerator, Optimizer&, Linear& net) {
            accelerator.clip_grad_norm_(net->parameters(), 0.1);
          }),
      HasSubstr("the number of gradient clippings"));
}

TEST(Replicas, AFrozenParameterOfOneRankIsFoundAtTheNextBackward) {
  for (const int stage : {0, 2}) {
    EXPECT_THAT(
        message_after(
            stage,
            [](Accelerator&, Optimizer&, Linear& net) { net->bias.set_requires_grad(false); }),
        HasSubstr("the requires_grad of parameter bias must be equal on all ranks; rank 0 has "
                  "true, rank 1 has false"))
        << "stage " << stage;
  }
}

TEST(Replicas, AZeroGradOfOneRankIsFoundAtTheNextBackward) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net = two_by_two();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    accelerator.backward(loss_of(net, rows_of(accelerator)));
    optimizer.step();
    if (accelerator.is_main_process()) {
      optimizer.zero_grad();
    }
    EXPECT_THAT(
        error_of<ConfigError>(
            [&, &net = net] { accelerator.backward(loss_of(net, rows_of(accelerator))); }),
        HasSubstr("the treatment of the last gradients must be equal on all ranks; rank 0 has "
                  "dropped them, rank 1 has added to them"));
  });
}

TEST(Replicas, AWriteOfOneRankIsFoundAtTheEndAndBeforeASave) {
  const TestFolder folder;
  for (const int stage : {0, 1}) {
    const std::string parameter = stage == 0 ? "weight" : "bias";
    const auto write = [&](Accelerator&, Optimizer&, Linear& net) {
      torch::NoGradGuard no_grad;
      (stage == 0 ? net->weight : net->bias).add_(1);
    };
    if (stage == 0) {
      EXPECT_THAT(
          message_after(stage, write),
          AllOf(
              HasSubstr("[end_training] parameter weight must be equal on all ranks"),
              HasSubstr("rank 0 has a value with checksum"),
              HasSubstr("before prepare() if only one rank has the values")));
    }
    accelerated_ranks(2, with_stage(0), [&](Accelerator& accelerator) {
      Linear net = two_by_two();
      accelerator.prepare(net);
      if (accelerator.process_index() == 1) {
        torch::NoGradGuard no_grad;
        (stage == 0 ? net->weight : net->bias).add_(1);
      }
      EXPECT_THAT(
          error_of<ConfigError>([&] { accelerator.save_state(folder.path() / "save"); }),
          HasSubstr("[save_state] parameter " + parameter + " must be equal on all ranks"));
      EXPECT_FALSE(std::filesystem::exists(folder.path() / "save"));
    });
  }
}

TEST(Replicas, AWriteOfOneRankAfterTheTrainingIsAllowedAfterABarrier) {
  for (const bool trains_again : {false, true}) {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      Linear net = two_by_two();
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      accelerator.backward(loss_of(net, rows_of(accelerator)));
      optimizer.step();
      accelerator.wait_for_everyone();
      if (accelerator.is_main_process()) {  // Such as averages, to be saved there.
        torch::NoGradGuard no_grad;
        net->weight.add_(1);
      }
      accelerator.wait_for_everyone();
      if (trains_again) {
        optimizer.zero_grad();
        accelerator.backward(loss_of(net, rows_of(accelerator)));
        optimizer.step();
        EXPECT_THAT(
            error_of<ConfigError>([&] { accelerator.end_training(); }),
            HasSubstr("[end_training] parameter weight must be equal on all ranks"));
      } else {
        accelerator.end_training();
      }
    });
  }
}

TEST(Replicas, AWriteOfOneRankBeforeTheBarrierIsFoundAtTheEnd) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net = two_by_two();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    accelerator.backward(loss_of(net, rows_of(accelerator)));
    if (accelerator.is_main_process()) {
      net->weight.mutable_grad().mul_(2);
    }
    optimizer.step();
    accelerator.wait_for_everyone();
    EXPECT_THAT(
        error_of<ConfigError>([&] { accelerator.end_training(); }),
        HasSubstr("[end_training] parameter weight must be equal on all ranks"));
  });
}

TEST(Replicas, AWriteOfOneRankIsFoundWithinAHundredUpdates) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net = two_by_two();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1e-4));
    int64_t updates = 0;
    EXPECT_THAT(
        error_of<ConfigError>([&, &optimizer = optimizer] {
          for (; updates < 300; ++updates) {
            accelerator.backward(loss_of(net, rows_of(accelerator)));
            if (updates == 3 && accelerator.process_index() == 1) {
              net->weight.mutable_grad().mul_(2);
            }
            optimizer.step();
            optimizer.zero_grad();
          }
        }),
        HasSubstr("[backward] parameter weight must be equal on all ranks"));
    EXPECT_EQ(updates, 100);
  });
}

TEST(Replicas, ALayerThatIsReplacedAfterPrepareIsRefusedOnOneRankAndOnTwo) {
  for (const int size : {1, 2}) {
    for (const bool prepare_again : {false, true}) {
      accelerated_ranks(size, {}, [&](Accelerator& accelerator) {
        torch::nn::Sequential net(Linear(2, 2), Linear(2, 1));
        auto opt = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, opt);
        net->push_back(Linear(1, 1));
        opt->add_param_group(torch::optim::OptimizerParamGroup(net[2]->parameters()));
        EXPECT_THAT(
            error_of<ConfigError>([&, &optimizer = optimizer, &net = net] {
              if (prepare_again) {
                accelerator.prepare(net);
              }
              accelerator.backward(net->forward(rows_of(accelerator)).mean());
              optimizer.step();
            }),
            HasSubstr("parameter 2.weight was added to the model after prepare()"));
        accelerator.wait_for_everyone();
      });
    }
  }
}

TEST(Replicas, APreparedOptimizerMayOutliveItsAccelerator) {
  for (const int size : {1, 2}) {
    accelerated_ranks(size, {}, [&](Accelerator& accelerator) {
      Linear net = two_by_two();
      std::optional<Accelerator> own(std::move(accelerator));
      auto [model, optimizer] = own->prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      own.reset();
      loss_of(net, at::ones({3, 2})).backward();
      optimizer.step();
      EXPECT_EQ(optimizer.steps(), 1);
    });
  }
}

// --- losses without a gradient

/// Returns a loss that depends on no parameter.
using LostLoss = std::function<at::Tensor(Accelerator&, Linear&)>;

TEST(LossWithoutGradient, IsRefusedAlikeOnOneRankAndOnTwo) {
  const std::vector<LostLoss> losses = {
      [](Accelerator& a, Linear& net) { return loss_of(net, rows_of(a)).detach(); },
      [](Accelerator& a, Linear& net) { return loss_of(net, rows_of(a)).to(at::kLong); },
      [](Accelerator& a, Linear& net) {
        const torch::NoGradGuard no_grad;
        return loss_of(net, rows_of(a));
      },
      [](Accelerator& a, Linear& net) {
        return a.gather_for_metrics(net->forward(rows_of(a))).mean();
      }};
  for (const int stage : {0, 2, 3}) {
    for (const int size : {1, 2}) {
      for (const LostLoss& lost : losses) {
        accelerated_ranks(size, with_stage(stage), [&](Accelerator& accelerator) {
          Linear net = two_by_two();
          auto [model, optimizer] =
              accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.1}));
          const at::Tensor loss = lost(accelerator, net);
          EXPECT_THAT(
              error_of<ConfigError>([&] { accelerator.backward(loss); }),
              AllOf(HasSubstr("so nothing would be trained"), HasSubstr("NoGradGuard")))
              << size << " ranks, stage " << stage;
        });
      }
    }
  }
}

TEST(LossWithoutGradient, OfOneRankCountsAsZero) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net = two_by_two();
    accelerator.prepare(net);
    const at::Tensor loss = loss_of(net, rows_of(accelerator));
    accelerator.backward(accelerator.is_main_process() ? loss : loss.detach());
    EXPECT_TRUE(is_same_on_all(accelerator, net->weight.grad()));
  });
}

// --- losses that are not finite

TEST(LossWatch, NamesTheRankAndTheBackwardOfTheFirstNonFiniteLoss) {
  const auto lines = logged_by([&] {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      Linear net = two_by_two();
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      for (int step = 0; step < 3; ++step) {
        const at::Tensor rows = rows_of(accelerator);
        // The mean over no samples is NaN, and has no gradient.
        const bool is_empty = step == 1 && accelerator.process_index() == 1;
        accelerator.backward(loss_of(net, is_empty ? rows.narrow(0, 0, 0) : rows));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  });
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("on rank 1 the loss of backward 2 is nan")));
}

TEST(EndTraining, NamesALoopWithoutAnUpdate) {
  for (const int size : {1, 2}) {
    const auto lines = logged_by([&] {
      accelerated_ranks(size, {}, [&](Accelerator& accelerator) {
        Linear net = two_by_two();
        auto [model, optimizer] =
            accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
        for (int step = 0; step < 3; ++step) {
          accelerator.backward(loss_of(net, rows_of(accelerator)));
        }
        accelerator.end_training();
      });
    });
    EXPECT_THAT(lines, ::testing::Contains(HasSubstr("after 3 backward passes without an update")));
  }
}

TEST(EndTraining, RefusesALocalSgdThatHasNotEnded) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net = two_by_two();
    accelerator.prepare(net);
    const LocalSgd local_sgd(accelerator, net);
    EXPECT_THAT(
        error_of<ConfigError>([&] { accelerator.end_training(); }),
        HasSubstr("a LocalSgd has not ended"));
  });
}

// --- L-BFGS

TEST(Closure, ReturnsTheMeanOverRanks) {
  for (const int size : {1, 2}) {
    accelerated_ranks(size, {}, [&](Accelerator& accelerator) {
      Linear net = two_by_two();
      auto [model, optimizer] = accelerator.prepare(
          net,
          torch::optim::LBFGS(
              net->parameters(),
              torch::optim::LBFGSOptions(1).max_iter(4).line_search_fn("strong_wolfe")));
      for (int step = 0; step < 3; ++step) {
        optimizer.step([&, &optimizer = optimizer, &net = net] {
          optimizer.zero_grad();
          const at::Tensor loss = loss_of(net, rows_of(accelerator));
          accelerator.backward(loss);
          return loss;  // This rank's own.
        });
      }
      EXPECT_TRUE(is_same_on_all(accelerator, net->weight));
      accelerator.end_training();
    });
  }
}

}  // namespace
}  // namespace lockstep::internal
