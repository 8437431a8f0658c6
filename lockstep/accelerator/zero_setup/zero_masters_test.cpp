// SPDX-License-Identifier: Apache-2.0
// ZeRO with parameters of fp16 and bf16 trains as one process with fp32 masters does.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/utils/clip_grad.h>

#include "lockstep/accelerator/zero_setup/test_masters.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep::test_masters {
namespace {

/// How one process trains with explicit masters.
struct Recipe {
  at::ScalarType dtype = at::kBFloat16;
  int world = 1;
  int64_t micro_steps = 1;
  /// Stage 1 adds up what one backward after the other gives, and averages that; the others add
  /// averages in fp32.
  bool average_each = true;
  bool fp32_sums = false;  ///< What adds up before it is averaged,
  bool fp32_comm = false;  ///< and its average.
  double scale = 1;
  double max_norm = 0;  ///< 0: no clipping.
};

/// The parameters after some updates.
at::Tensor reference_run(const Recipe& recipe) {
  Net net = new_net(recipe.dtype);
  std::vector<at::Tensor> parameters = net->parameters();
  std::vector<at::Tensor> masters;
  for (const at::Tensor& parameter : parameters) {
    masters.push_back(parameter.detach().to(at::kFloat).set_requires_grad(true));
  }
  optim::AdamW optimizer = adamw(masters);
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t averages = recipe.average_each ? recipe.micro_steps : 1;
    const int64_t backwards = recipe.micro_steps / averages;
    for (int64_t average = 0; average < averages; ++average) {
      std::vector<at::Tensor> sums(parameters.size());
      for (int rank = 0; rank < recipe.world; ++rank) {
        std::vector<at::Tensor> own(parameters.size());
        net->zero_grad();
        for (int64_t backward = 0; backward < backwards; ++backward) {
          const int64_t micro_step = step * recipe.micro_steps + average * backwards + backward;
          const double factor = recipe.scale / static_cast<double>(recipe.micro_steps);
          (loss_of(net, rank, micro_step) * factor).backward();
          for (size_t i = 0; recipe.fp32_sums && i < parameters.size(); ++i) {
            const at::Tensor gradient = parameters[i].grad().to(at::kFloat);
            own[i] = own[i].defined() ? own[i] + gradient : gradient;
            parameters[i].mutable_grad().reset();
          }
        }
        for (size_t i = 0; i < parameters.size(); ++i) {
          const at::Tensor gradient =
              recipe.fp32_sums ? own[i] : parameters[i].grad().to(at::kFloat);
          const at::Tensor sent = recipe.fp32_comm ? gradient : gradient.to(recipe.dtype);
          sums[i] = sums[i].defined() ? sums[i] + sent : sent.to(at::kFloat);
        }
      }
      for (size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor exact = sums[i] / recipe.world;
        const at::Tensor mean = recipe.fp32_comm ? exact : exact.to(recipe.dtype).to(at::kFloat);
        at::Tensor& gradient = masters[i].mutable_grad();
        gradient = gradient.defined() ? gradient + mean : mean;
      }
    }
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& master : masters) {
      master.grad().mul_(1 / recipe.scale);
    }
    if (recipe.max_norm > 0) {
      torch::nn::utils::clip_grad_norm_(masters, recipe.max_norm);
    }
    optimizer.step();
    optimizer.zero_grad();
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].copy_(masters[i]);
    }
  }
  return flat(parameters);
}

class ZeroMasters : public ::testing::TestWithParam<std::tuple<int, at::ScalarType>> {};

TEST_P(ZeroMasters, TrainBitExactlyAsOneProcessWithFp32Masters) {
  const auto& [number, dtype] = GetParam();
  for (const int world : {1, 2, 4}) {
    for (const int64_t micro_steps : {1, 4}) {
      SCOPED_TRACE(std::to_string(world) + " ranks, micro-steps " + std::to_string(micro_steps));
      const at::Tensor expected = reference_run(
          {.dtype = dtype, .world = world, .micro_steps = micro_steps, .average_each = number > 1});
      const at::Tensor trained =
          weights_after(stage(number, micro_steps), world, dtype, [&](Training& training) {
            training.train(0, kSteps * micro_steps);
          });
      EXPECT_TRUE(at::equal(trained, expected)) << (trained - expected).abs().max().item<double>();
    }
  }
}

TEST(ZeroMastersSums, OfStage1AreFp32OnRequest) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const int world : {1, 2, 4}) {
      for (const bool fp32_comm : {false, true}) {
        AcceleratorOptions options = stage(1, 4);
        options.zero->grad_accum_dtype = FloatDtype::kFloat32;
        if (fp32_comm) {
          options.zero->communication_data_type = FloatDtype::kFloat32;
        }
        const at::Tensor expected = reference_run(
            {.dtype = dtype,
             .world = world,
             .micro_steps = 4,
             .average_each = false,
             .fp32_sums = true,
             .fp32_comm = fp32_comm});
        const at::Tensor trained = weights_after(
            options, world, dtype, [](Training& training) { training.train(0, kSteps * 4); });
        EXPECT_TRUE(at::equal(trained, expected)) << world << " ranks, fp32_comm " << fp32_comm;
      }
    }
  }
}

TEST_P(ZeroMasters, ClipByTheNormOfAllRanksShards) {
  const auto& [number, dtype] = GetParam();
  for (const int world : {1, 2, 4}) {
    const at::Tensor expected = reference_run({.dtype = dtype, .world = world, .max_norm = 0.05});
    const at::Tensor trained = weights_after(
        stage(number), world, dtype, [](Training& training) { training.train(0, kSteps, 0.05); });
    // The norm is a sum in another order: a master here and there rounds to the neighbour.
    EXPECT_TRUE(at::allclose(trained.to(at::kFloat), expected.to(at::kFloat), 8e-3, 1e-5));
    EXPECT_LT((trained != expected).sum().item<int64_t>(), trained.numel() / 100);
  }
}

/// A rank's master and its two moments are fp32, and there is no other state.
TEST_P(ZeroMasters, HaveStateAndGradientsInFp32OfTheirPartAlone) {
  const auto& [number, dtype] = GetParam();
  accelerated_ranks(2, stage(number), [dtype = dtype](Accelerator& accelerator) {
    Training training(accelerator, dtype);
    accelerator.backward(loss_of(training.net, accelerator.process_index(), 0));
    for (const at::Tensor& shard_slice : training.optimizer.parameters()) {
      EXPECT_EQ(shard_slice.scalar_type(), at::kFloat);
      EXPECT_EQ(shard_slice.grad().scalar_type(), at::kFloat);
    }
    training.optimizer.step();
    auto& inner = dynamic_cast<optim::FlatOptimizer&>(training.optimizer.inner());
    for (const at::Tensor& shard_slice : training.optimizer.parameters()) {
      for (const at::Tensor& field : inner.state_of(shard_slice).fields) {
        if (field.defined()) {
          EXPECT_EQ(field.scalar_type(), at::kFloat);
          EXPECT_EQ(field.numel(), shard_slice.numel());
        }
      }
    }
    for (const at::Tensor& parameter : training.net->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), dtype);
    }
  });
}

TEST_P(ZeroMasters, DoNotLoseUpdatesThatAreTooSmallForTheParameters) {
  const auto& [number, dtype] = GetParam();
  constexpr double kTiny = 2e-5;
  constexpr int kMany = 300;
  const auto moved = [dtype = dtype](int to_stage) {
    double distance = 0;
    accelerated_ranks(2, stage(to_stage), [&](Accelerator& accelerator) {
      Training training(accelerator, dtype, kTiny);
      const at::Tensor before = training.weights().to(at::kDouble);
      for (int i = 0; i < kMany; ++i) {
        training.train(0, 1, 0, /*same=*/true);
      }
      const at::Tensor after = training.weights().to(at::kDouble);
      if (accelerator.is_main_process()) {
        distance = (after - before).abs().mean().item<double>();
      }
    });
    return distance;
  };
  // AdamW moves each by the learning rate, step after step in one direction.
  const double expected = kTiny * kMany;
  EXPECT_NEAR(moved(number), expected, expected / 4);
  if (dtype == at::kBFloat16) {
    EXPECT_LT(moved(0), expected / 4) << "data parallel does lose them";
  }
}

TEST_P(ZeroMasters, AdoptWrittenValues) {
  const auto& [number, dtype] = GetParam();
  const auto written = [](Training& training) {
    training.train(0, 2);
    {
      const torch::NoGradGuard no_grad;
      training.net->last->weight.fill_(0.25);
    }
    training.accelerator.with_gathered_parameters(
        {training.net->first->bias},
        [&] {
          if (training.accelerator.is_main_process()) {
            const torch::NoGradGuard no_grad;
            training.net->first->bias.slice(0, 0, 3).fill_(-0.75);
          }
        },
        /*modifier_rank=*/0);
  };
  for (const int world : {1, 2, 3}) {
    accelerated_ranks(world, stage(number), [&](Accelerator& accelerator) {
      Training training(accelerator, dtype);
      written(training);
      const at::Tensor bias = training.net->first->bias.detach().clone();
      // An update that changes nothing but what it rounds to.
      training.optimizer.set_learning_rates({0});
      training.train(2, 3);
      EXPECT_TRUE(at::all(training.net->last->weight == 0.25).item<bool>());
      EXPECT_TRUE(at::all(training.net->first->bias.slice(0, 0, 3) == -0.75).item<bool>());
      EXPECT_TRUE(at::equal(training.net->first->bias, bias));
    });
  }
}

TEST_P(ZeroMasters, ResumeBitExactly) {
  const auto& [number, dtype] = GetParam();
  const TestFolder folder;
  for (const int world : {1, 2, 3}) {
    const std::filesystem::path path = folder / std::to_string(world);
    const at::Tensor unbroken = weights_after(stage(number), world, dtype, [&](Training& training) {
      training.train(0, 3);
      training.accelerator.save_state(path);
      training.train(3, 7);
    });
    const at::Tensor resumed = weights_after(stage(number), world, dtype, [&](Training& training) {
      training.train(4, 6);
      training.accelerator.load_state(path);
      EXPECT_EQ(training.optimizer.steps(), 3);
      training.train(3, 7);
    });
    EXPECT_TRUE(at::equal(resumed, unbroken)) << world;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Stages,
    ZeroMasters,
    ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(at::kHalf, at::kBFloat16)),
    [](const auto& of) {
      return std::to_string(std::get<0>(of.param)) + "_" + c10::toString(std::get<1>(of.param));
    });

TEST(ZeroMastersScaled, FindOverflowAndLoseTheScaleInFp32) {
  for (const int number : {1, 2, 3}) {
    AcceleratorOptions options = stage(number);
    options.mixed_precision = Precision::kFP16;
    options.grad_scaler.init_scale = 1024;
    const at::Tensor expected = reference_run({.dtype = at::kHalf, .world = 2, .scale = 1024});
    const at::Tensor trained = weights_after(options, 2, at::kHalf, [](Training& training) {
      training.train(0, 2);
      const at::Tensor before = training.shard_slices();
      const at::Tensor weights = training.weights();
      Accelerator& accelerator = training.accelerator;
      const double overflows = accelerator.process_index() == 1 ? 1e30 : 1;
      accelerator.backward(loss_of(training.net, 0, 9) * overflows);
      training.optimizer.step();
      EXPECT_TRUE(training.optimizer.step_was_skipped());
      training.optimizer.zero_grad();
      EXPECT_TRUE(at::equal(training.shard_slices(), before));
      EXPECT_TRUE(at::equal(training.weights(), weights));
      EXPECT_EQ(accelerator.scaler()->get_scale(), 512);
      training.train(2, kSteps);
    });
    EXPECT_TRUE(at::allclose(trained.to(at::kFloat), expected.to(at::kFloat), 2e-3, 1e-4));
  }
}

}  // namespace
}  // namespace lockstep::test_masters
