// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/local_sgd/local_sgd.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/zero_setup/test_zero.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/rules/adagrad.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/asgd.h"
#include "lockstep/optim/rules/nadam.h"
#include "lockstep/optim/rules/radam.h"
#include "lockstep/optim/rules/rprop.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/zero/gradient_placeholders.h"
#include "tests/nets.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

using Net = test::TwoLayerNet;

/// Losses and, last, the weights of each rank's training.
template <typename MakeOptimizer>
std::vector<at::Tensor> losses_and_weights(
    const AcceleratorOptions& options, int world, const MakeOptimizer& make_optimizer) {
  std::vector<at::Tensor> all(static_cast<size_t>(world));
  accelerated_ranks(world, options, [&](Accelerator& accelerator) {
    Net net;
    auto [model, optimizer] = accelerator.prepare(net, make_optimizer(net));
    std::vector<at::Tensor> seen;
    for (int step = 0; step < 8; ++step) {
      auto micro_step = accelerator.accumulate(model);
      const at::Tensor loss =
          model->forward(sine_batch(accelerator.process_index(), step)).square().sum();
      seen.push_back(loss.detach().reshape({1}));
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    seen.push_back(flat_weights(*model));
    all[static_cast<size_t>(accelerator.process_index())] = at::cat(seen);
  });
  return all;
}

template <typename MakeOptimizer>
void expect_bits_of_data_parallel(int number, const MakeOptimizer& make_optimizer) {
  const int64_t micro_steps = number == 1 ? 2 : 1;
  const auto plain =
      losses_and_weights({.gradient_accumulation_steps = micro_steps}, 2, make_optimizer);
  const auto sharded = losses_and_weights(stage(number, micro_steps), 2, make_optimizer);
  EXPECT_TRUE(at::equal(plain[0], sharded[0]));
  EXPECT_TRUE(at::equal(plain[1], sharded[1]));
}

TEST(Zero, TwoRanksHaveTheBitsOfDataParallel) {
  for (const int number : {1, 2, 3}) {
    expect_bits_of_data_parallel(number, [](const Net& net) {
      return optim::AdamW(net->parameters(), {.lr = 0.01, .weight_decay = 0.1});
    });
    expect_bits_of_data_parallel(number, [](const Net& net) {
      return optim::SGD(net->parameters(), {.lr = 0.01, .momentum = 0.9});
    });
    expect_bits_of_data_parallel(
        number, [](const Net& net) { return optim::Adagrad(net->parameters(), {.lr = 0.01}); });
    expect_bits_of_data_parallel(
        number, [](const Net& net) { return optim::NAdam(net->parameters(), {.lr = 0.01}); });
    expect_bits_of_data_parallel(
        number, [](const Net& net) { return optim::RAdam(net->parameters(), {.lr = 0.01}); });
    expect_bits_of_data_parallel(number, [](const Net& net) {
      return optim::ASGD(net->parameters(), {.lr = 0.01, .t0 = 3});
    });
    expect_bits_of_data_parallel(
        number, [](const Net& net) { return optim::Rprop(net->parameters(), {.lr = 0.01}); });
  }
}

TEST(Zero, EachGroupKeepsItsOptions) {
  const auto two_groups = [](const Net& net) {
    return optim::AdamW(std::vector<optim::AdamW::Group>{
        {net->first->parameters(), {.lr = 0.1}}, {net->last->parameters(), {.lr = 1e-3}}});
  };
  expect_bits_of_data_parallel(2, two_groups);
}

TEST(Zero, ARankHasItsPartOfTheStateAlone) {
  for (const int world : {2, 4}) {
    accelerated_ranks(world, {.zero = ZeroPlugin{.stage = 2}}, [world](Accelerator& accelerator) {
      torch::nn::Linear net(256, 256);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
      accelerator.backward(model->forward(at::ones({2, 256})).sum());
      double gradients = 0;
      double state = 0;
      auto& flat = dynamic_cast<optim::FlatOptimizer&>(optimizer.inner());
      const auto shard_slices = optimizer.parameters();
      for (const at::Tensor& shard_slice : shard_slices) {
        gradients += static_cast<double>(shard_slice.grad().numel());
      }
      EXPECT_TRUE(zero::is_gradient_placeholder(model->weight.grad()));
      optimizer.step();
      for (const at::Tensor& shard_slice : shard_slices) {
        for (const at::Tensor& field : flat.state_of(shard_slice).fields) {
          state += field.defined() ? static_cast<double>(field.nbytes()) : 0;
        }
      }
      const double parameters = 256 * 257;
      EXPECT_NEAR(gradients, parameters / world, parameters / world / 20);
      EXPECT_NEAR(state / 4, 2 * parameters / world, parameters / world / 10);
    });
  }
}

TEST(Zero, ACheckpointLoadsInAnyStageAndOnAnyNumberOfRanks) {
  const TestFolder folder;
  const auto adamw = [](const Net& net) { return optim::AdamW(net->parameters(), {.lr = 0.01}); };
  // The same batch on every rank: then the number of ranks does not matter.
  const auto steps =
      [](Accelerator& accelerator, Net& model, Optimizer& optimizer, int from, int to) {
        for (int step = from; step < to; ++step) {
          accelerator.backward(model->forward(sine_batch(0, step)).square().sum());
          optimizer.step();
          optimizer.zero_grad();
        }
      };
  at::Tensor unbroken;
  accelerated_ranks(1, {}, [&](Accelerator& accelerator) {
    Net net;
    auto [model, optimizer] = accelerator.prepare(net, adamw(net));
    steps(accelerator, model, optimizer, 0, 6);
    unbroken = flat_weights(*model);
  });
  struct Setup {
    int world;
    AcceleratorOptions options;
  };
  const std::vector<Setup> setups = {
      {1, {}}, {2, {}}, {2, stage(1)}, {3, stage(2)}, {4, stage(3)}, {1, stage(2)}, {2, stage(3)}};
  for (size_t saved = 0; saved < setups.size(); ++saved) {
    const auto path = folder.path() / std::to_string(saved);
    accelerated_ranks(setups[saved].world, setups[saved].options, [&](Accelerator& accelerator) {
      Net net;
      auto [model, optimizer] = accelerator.prepare(net, adamw(net));
      steps(accelerator, model, optimizer, 0, 3);
      accelerator.save_state(path);
    });
    for (const Setup& setup : setups) {
      accelerated_ranks(setup.world, setup.options, [&](Accelerator& accelerator) {
        Net net;
        auto [model, optimizer] = accelerator.prepare(net, adamw(net));
        accelerator.load_state(path);
        EXPECT_EQ(optimizer.steps(), 3);
        steps(accelerator, model, optimizer, 3, 6);
        EXPECT_TRUE(at::allclose(flat_weights(*model), unbroken, 1e-5, 1e-6))
            << saved << " to " << setup.world;
      });
    }
  }
}

/// Three updates, a checkpoint, three more: in `saving`, then in `loading`.
template <typename MakeOptimizer>
void expect_checkpoint_to_go_on(const MakeOptimizer& make_optimizer) {
  struct Setup {
    int world;
    AcceleratorOptions options;
  };
  const TestFolder folder;
  const auto train = [](Accelerator& accelerator, Net& model, Optimizer& optimizer, int from) {
    for (int step = from; step < from + 3; ++step) {
      accelerator.backward(model->forward(sine_batch(0, step)).square().sum());
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  at::Tensor unbroken;
  accelerated_ranks(1, {}, [&](Accelerator& accelerator) {
    Net net;
    auto [model, optimizer] = accelerator.prepare(net, make_optimizer(net));
    train(accelerator, model, optimizer, 0);
    train(accelerator, model, optimizer, 3);
    unbroken = flat_weights(*model);
  });
  const std::vector<Setup> setups = {{1, {}}, {2, stage(1)}, {3, stage(3)}};
  for (size_t saving = 0; saving < setups.size(); ++saving) {
    const auto path = folder.path() / std::to_string(saving);
    accelerated_ranks(setups[saving].world, setups[saving].options, [&](Accelerator& accelerator) {
      Net net;
      auto [model, optimizer] = accelerator.prepare(net, make_optimizer(net));
      train(accelerator, model, optimizer, 0);
      accelerator.save_state(path);
    });
    for (const Setup& loading : setups) {
      accelerated_ranks(loading.world, loading.options, [&](Accelerator& accelerator) {
        Net net;
        auto [model, optimizer] = accelerator.prepare(net, make_optimizer(net));
        accelerator.load_state(path);
        train(accelerator, model, optimizer, 3);
        EXPECT_TRUE(at::allclose(flat_weights(*model), unbroken, 1e-5, 1e-6))
            << saving << " to " << loading.world;
      });
    }
  }
}

TEST(Zero, ACheckpointKeepsStateThatIsOneNumberOfAParameter) {
  expect_checkpoint_to_go_on([](const Net& net) {
    return optim::NAdam(net->parameters(), {.lr = 0.01, .momentum_decay = 0.5});
  });
  expect_checkpoint_to_go_on([](const Net& net) {
    return optim::ASGD(net->parameters(), {.lr = 0.01, .lambd = 10, .t0 = 1});
  });
}

TEST(Zero, AccumulatedGradientsCannotBeSavedAndTheErrorSaysSo) {
  const TestFolder folder;
  accelerated_ranks(2, stage(2, 2), [&](Accelerator& accelerator) {
    Net net;
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
    {
      auto micro_step = accelerator.accumulate(model);
      accelerator.backward(model->forward(sine_batch(0, 0)).sum());
    }
    EXPECT_THAT(
        [&] { accelerator.save_state(folder.path() / "half"); },
        ::testing::ThrowsMessage<CheckpointError>(
            HasSubstr("save where an accumulation group ends")));
  });
}

std::string error_on_ranks(
    const AcceleratorOptions& options, const std::function<void(Accelerator&)>& body) {
  return error_of([&] { accelerated_ranks(2, options, body); });
}

TEST(Zero, UnsupportedUsesAreRefusedWithTheReason) {
  const auto nothing = [](Accelerator&) {};
  EXPECT_THAT(
      error_on_ranks({.zero = ZeroPlugin{.stage = 0}}, nothing), HasSubstr("no such stage"));
  EXPECT_THAT(error_on_ranks(stage(4), nothing), HasSubstr("no such stage"));
  AcceleratorOptions negative = stage(3);
  negative.zero->stage3_max_live_parameters = -1;
  EXPECT_THAT(error_on_ranks(negative, nothing), HasSubstr("cannot be negative"));
  AcceleratorOptions early = stage(2);
  early.zero->zero_quantized_weights = true;
  EXPECT_THAT(error_on_ranks(early, nothing), HasSubstr("got stage 2, expected 3"));
  for (const int partition : {-1, 3}) {
    AcceleratorOptions uneven = stage(3);
    uneven.zero->zero_hpz_partition_size = partition;
    EXPECT_THAT(error_on_ranks(uneven, nothing), HasSubstr("expected a divisor of 2"));
  }
  AcceleratorOptions shared = stage(1);
  shared.shared_parameters = true;
  EXPECT_THAT(error_on_ranks(shared, nothing), HasSubstr("shared_parameters"));
  AcceleratorOptions hook = stage(1);
  hook.data_parallel.comm_hook.type = CommHookType::kFp16;
  EXPECT_THAT(error_on_ranks(hook, nothing), HasSubstr("comm hook fp16"));
  EXPECT_THAT(
      error_on_ranks(
          stage(2),
          [](Accelerator& accelerator) {
            Net net;
            accelerator.prepare(
                net, torch::optim::Adam(net->parameters(), torch::optim::AdamOptions(0.1)));
          }),
      HasSubstr("an optimizer of lockstep::optim"));
  EXPECT_THAT(
      error_on_ranks(
          stage(2),
          [](Accelerator& accelerator) {
            Net net;
            accelerator.prepare(net);
          }),
      HasSubstr("prepared in one call"));
  EXPECT_THAT(
      error_on_ranks(
          stage(2),
          [](Accelerator& accelerator) {
            Net net;
            auto [model, optimizer] =
                accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.1}));
            const LocalSgd local(accelerator, model, {.local_sgd_steps = 2});
          }),
      HasSubstr("cannot be combined with ZeRO"));
}

}  // namespace
}  // namespace lockstep
