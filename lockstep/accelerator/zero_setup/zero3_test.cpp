// SPDX-License-Identifier: Apache-2.0
// ZeRO stage 3, as who writes a training loop meets it.
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/zero_setup/test_zero.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/weights/load_model.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "tests/nets.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

AcceleratorOptions stage3(int64_t cap_bytes = 4000) {
  return {.zero = ZeroPlugin{.stage = 3, .bucket_cap_bytes = cap_bytes}};
}

std::vector<at::Tensor> values_of(const torch::nn::Sequential& net) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : net->parameters()) {
    values.push_back(parameter.detach().clone());
  }
  return values;
}

TEST(Zero3, ARankHasItsPartOfEverythingBetweenSteps) {
  for (const int world : {2, 4}) {
    accelerated_ranks(world, stage3(), [world](Accelerator& accelerator) {
      auto net = sine_layers(6, 64);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
      accelerator.backward(model->forward(at::ones({2, 64})).sum());
      optimizer.step();
      optimizer.zero_grad();
      double own = 0;
      for (const at::Tensor& shard_slice : optimizer.parameters()) {
        own += static_cast<double>(shard_slice.numel());
      }
      const double all = 6 * 64 * 65;
      EXPECT_NEAR(own, all / world, all / world / 20);
      for (const at::Tensor& parameter : model->parameters()) {
        EXPECT_TRUE(comm::is_sharded_param(parameter));
        EXPECT_THROW(static_cast<void>(parameter.const_data_ptr()), c10::Error) << "no memory";
      }
    });
  }
}

TEST(Zero3, GatheredMemoryCanBeRead) {
  accelerated_ranks(2, stage3(), [](Accelerator& accelerator) {
    auto net = sine_layers(3, 32);
    const std::vector<at::Tensor> expected = values_of(net);
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
    const std::vector<at::Tensor> parameters = model->parameters();
    accelerator.with_gathered_parameters({parameters[0]}, [&] {
      const auto* values = parameters[0].const_data_ptr<float>();
      EXPECT_EQ(values[5], expected[0].reshape({-1})[5].item<float>());
    });
  });
}

TEST(Zero3, AWriteOfOneProcessToGatheredParametersReachesAll) {
  for (const int stage : {2, 3}) {
    AcceleratorOptions options = stage3();
    options.zero->stage = stage;
    accelerated_ranks(2, options, [](Accelerator& accelerator) {
      auto net = sine_layers(3, 32);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0}));
      at::Tensor weight = model->parameters()[2];
      accelerator.with_gathered_parameters(
          {weight},
          [&] {
            if (accelerator.process_index() == 1) {
              weight.const_data_ptr();
              weight.detach().fill_(7);
            }
          },
          1);
      EXPECT_TRUE(at::equal(weight, at::full_like(weight, 7)));
      accelerator.backward(model->forward(at::ones({2, 32})).sum());
      optimizer.step();
      EXPECT_NEAR(weight.detach().mean().item<double>(), 7, 1e-5) << "the shards have it too";
      EXPECT_THROW(
          accelerator.with_gathered_parameters(
              {weight}, [] {}, 2),
          ConfigError);
    });
  }
}

TEST(Zero3, WeightsAreWrittenInFullAndReadBack) {
  const TestFolder folder;
  const auto expected = values_of(sine_layers(3, 32));
  accelerated_ranks(2, stage3(), [&](Accelerator& accelerator) {
    auto net = sine_layers(3, 32);
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
    accelerator.save_model(model, folder.path() / "weights");
    for (at::Tensor& parameter : model->parameters()) {
      const torch::NoGradGuard no_grad;
      parameter.zero_();
    }
    checkpoint::load_checkpoint_in_model(*model, folder.path() / "weights");
    EXPECT_TRUE(at::equal(model->parameters()[3], expected[3])) << "into divided parameters";
  });
  auto plain = sine_layers(3, 32);
  for (auto& parameter : plain->parameters()) {
    parameter.detach().zero_();
  }
  checkpoint::load_checkpoint_in_model(*plain, folder.path() / "weights");
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(plain->parameters()[i], expected[i]));
  }
}

/// Four processes, two a host.
void on_two_hosts(const ZeroPlugin& plugin, const std::function<void(Accelerator&)>& body) {
  ranks(4, [&](Group group) {
    WorldSpec world;
    world.rank = group.rank();
    world.size = group.size();
    world.local_rank = group.rank() % 2;
    world.local_size = 2;
    Accelerator accelerator({.zero = plugin}, world, std::move(group));
    body(accelerator);
  });
}

TEST(Zero3, PlusPlusTrainsWithinABandAndSavesExactValues) {
  const TestFolder folder;
  const ZeroPlugin plain = {.stage = 3, .bucket_cap_bytes = 4000};
  ZeroPlugin rounded = plain;
  rounded.zero_quantized_weights = rounded.zero_quantized_gradients = true;
  ZeroPlugin all = rounded;
  all.zero_hpz_partition_size = 2;
  std::vector<double> losses;
  for (const ZeroPlugin& plugin : {plain, rounded, all}) {
    on_two_hosts(plugin, [&](Accelerator& accelerator) {
      auto net = sine_layers(3, 32);
      const auto expected = values_of(net);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.05}));
      accelerator.save_model(model, folder.path() / "weights");
      accelerator.with_gathered_parameters(model->parameters(), [&] {
        EXPECT_TRUE(at::equal(model->parameters()[2], expected[2])) << "exact while held";
      });
      at::Tensor loss;
      for (int step = 0; step < 10; ++step) {
        loss =
            model->forward(at::ones({2, 32}) * (accelerator.process_index() + 1)).square().mean();
        accelerator.backward(loss);
        accelerator.clip_grad_norm_(model->parameters(), 1.0);
        optimizer.step();
        optimizer.zero_grad();
      }
      const at::Tensor mean = accelerator.reduce(loss.detach());
      if (accelerator.is_main_process()) {
        losses.push_back(mean.item<double>());
      }
    });
    auto saved = sine_layers(3, 32);
    const auto expected = values_of(saved);
    for (auto& parameter : saved->parameters()) {
      parameter.detach().zero_();
    }
    checkpoint::load_checkpoint_in_model(*saved, folder.path() / "weights");
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(saved->parameters()[i], expected[i])) << "exact in files";
    }
  }
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_NEAR(losses[0], losses[1], 0.05 * losses[0]);
  EXPECT_EQ(losses[1], losses[2]) << "second copies change nothing";
}

TEST(Zero3, AModelBuiltInPartsTrainsAsOneThatWasNot) {
  std::vector<std::vector<at::Tensor>> weights(2);
  for (const bool in_parts : {false, true}) {
    accelerated_ranks(2, stage3(20000), [&](Accelerator& accelerator) {
      const auto build = [] { return sine_layers(3, 96); };
      auto net = in_parts ? accelerator.zero_init(build) : build();
      EXPECT_EQ(comm::is_sharded_param(net->parameters()[0]), in_parts);
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(model->forward(at::ones({2, 96})).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      const std::vector<at::Tensor> values = values_of(model);
      if (accelerator.is_main_process()) {
        weights[in_parts ? 1 : 0] = values;
      }
    });
  }
  for (size_t i = 0; i < weights[0].size(); ++i) {
    EXPECT_TRUE(at::equal(weights[0][i], weights[1][i]));
  }
}

TEST(Zero3, ABuildWithinABuildIsRefusedAndTheOuterOneContinues) {
  accelerated_ranks(2, stage3(20000), [](Accelerator& accelerator) {
    auto net = accelerator.zero_init([&] {
      EXPECT_THAT(
          error_of<ConfigError>([&] { accelerator.zero_init([] { return sine_layers(1, 96); }); }),
          HasSubstr("called within another zero_init"));
      return sine_layers(2, 96);
    });
    EXPECT_TRUE(comm::is_sharded_param(net->parameters()[0]));
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
    accelerator.backward(model->forward(at::ones({2, 96})).square().mean());
    optimizer.step();
  });
}

TEST(Zero3, NothingIsBuiltInPartsWithoutIt) {
  accelerated_ranks(2, {.zero = ZeroPlugin{.stage = 2}}, [](Accelerator& accelerator) {
    auto net = accelerator.zero_init([] { return sine_layers(1, 96); });
    EXPECT_FALSE(comm::is_sharded_param(net->parameters()[0]));
  });
}

TEST(Zero3, ARankThatReadsAParameterAloneGetsAnErrorWithTheRemedy) {
  std::string said;
  EXPECT_THROW(
      accelerated_ranks(
          2,
          stage3(),
          [&](Accelerator& accelerator) {
            auto net = sine_layers(3, 32);
            auto [model, optimizer] =
                accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
            if (accelerator.is_main_process()) {
              try {
                model->parameters()[0].sum();
              } catch (const CommError& error) {
                said = error.what();
                throw;
              }
            }
            accelerator.wait_for_everyone();
          }),
      CommError)
      << "rank 1 was waiting elsewhere";
  EXPECT_THAT(said, HasSubstr("the all-gather of 0."));
  EXPECT_THAT(said, HasSubstr("barrier"));
  EXPECT_THAT(said, HasSubstr("use the same parameters on all ranks"));
  EXPECT_THAT(said, HasSubstr("with_gathered_parameters"));
}

TEST(Zero3, WorksOverSocketsAndSharedMemory) {
  const auto train = [](Group group) {
    WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = group.size();
    Accelerator accelerator(stage3(), world, std::move(group));
    auto net = sine_layers(3, 32);
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
    for (int step = 0; step < 4; ++step) {
      accelerator.backward(
          model->forward(at::ones({2, 32}) * (accelerator.process_index() + 1)).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    const at::Tensor mine = model->parameters()[0].detach().clone();
    EXPECT_TRUE(at::equal(mine, accelerator.gather(mine.unsqueeze(0))[0]));
  };
  gloo_ranks(2, train);
  shm_ranks(3, train);
}

}  // namespace
}  // namespace lockstep
