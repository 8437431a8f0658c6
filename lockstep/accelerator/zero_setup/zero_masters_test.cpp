// SPDX-License-Identifier: Apache-2.0
// ZeRO with parameters of fp16 and bf16, as who writes a training loop meets it: training is that
// of fp32 masters in one process.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/rules/adam.h"
#include "tests/nets.h"

namespace lockstep {
namespace {

constexpr double kLr = 0.01;
constexpr int kSteps = 4;

AcceleratorOptions stage(int number, int64_t micro_steps = 1) {
  AcceleratorOptions options{.gradient_accumulation_steps = micro_steps};
  if (number > 0) {
    options.zero = ZeroPlugin{.stage = number, .bucket_cap_bytes = 1000};
  }
  return options;
}

using Net = test::TwoLayerNet;

Net new_net(at::ScalarType dtype) {
  return Net(test::TwoLayerOptions{.scale = 0.5, .dtype = dtype});
}

at::Tensor loss_of(Net& net, int rank, int64_t micro_step) {
  const at::Tensor x =
      at::sin(at::arange(4 * 24, at::kFloat) * (1 + rank) + static_cast<double>(micro_step));
  return net->forward(x.reshape({4, 24})).square().mean();
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : tensors) {
    all.push_back(tensor.detach().reshape({-1}).clone());
  }
  return at::cat(all);
}

optim::AdamW adamw(const std::vector<at::Tensor>& parameters, double lr = kLr) {
  return optim::AdamW(parameters, {.lr = lr, .weight_decay = 0.1});
}

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
at::Tensor oracle(const Recipe& recipe) {
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

struct Training {
  Training(Accelerator& given, at::ScalarType dtype, double lr = kLr)
      : accelerator(given), net(new_net(dtype)) {
    optimizer = std::get<1>(accelerator.prepare(net, adamw(net->parameters(), lr)));
  }
  /// `same`: every rank has rank 0's batches.
  void train(int64_t from, int64_t to, double max_norm = 0, bool same = false) {
    const int rank = same ? 0 : accelerator.process_index();
    for (int64_t micro_step = from; micro_step < to; ++micro_step) {
      auto scope = accelerator.accumulate(net);
      accelerator.backward(loss_of(net, rank, micro_step));
      if (max_norm > 0) {
        accelerator.clip_grad_norm_(net->parameters(), max_norm);
      }
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  at::Tensor weights() const { return flat(net->parameters()); }
  /// This rank's: what is updated.
  at::Tensor shard_slices() const { return flat(optimizer.parameters()); }

  Accelerator& accelerator;
  Net net;
  Optimizer optimizer;
};

/// The weights after `body`, which are the same on all ranks.
at::Tensor weights_after(
    const AcceleratorOptions& options,
    int world,
    at::ScalarType dtype,
    const std::function<void(Training&)>& body) {
  std::vector<at::Tensor> all(static_cast<size_t>(world));
  accelerated_ranks(world, options, [&](Accelerator& accelerator) {
    Training training(accelerator, dtype);
    body(training);
    all[static_cast<size_t>(accelerator.process_index())] = training.weights();
  });
  for (const at::Tensor& weights : all) {
    EXPECT_TRUE(at::equal(weights, all[0]));
  }
  EXPECT_EQ(all[0].scalar_type(), dtype);
  return all[0];
}

class ZeroMasters : public ::testing::TestWithParam<std::tuple<int, at::ScalarType>> {};

TEST_P(ZeroMasters, TrainAsOneProcessWithFp32MastersToTheBit) {
  const auto& [number, dtype] = GetParam();
  for (const int world : {1, 2, 4}) {
    for (const int64_t micro_steps : {1, 4}) {
      SCOPED_TRACE(std::to_string(world) + " ranks, micro-steps " + std::to_string(micro_steps));
      const at::Tensor expected = oracle(
          {.dtype = dtype, .world = world, .micro_steps = micro_steps, .average_each = number > 1});
      const at::Tensor trained =
          weights_after(stage(number, micro_steps), world, dtype, [&](Training& training) {
            training.train(0, kSteps * micro_steps);
          });
      EXPECT_TRUE(at::equal(trained, expected)) << (trained - expected).abs().max().item<double>();
    }
  }
}

TEST(ZeroMastersSums, OfStage1AreFp32IfToldSo) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const int world : {1, 2, 4}) {
      for (const bool travels : {false, true}) {
        AcceleratorOptions options = stage(1, 4);
        options.zero->grad_accum_dtype = at::kFloat;
        if (travels) {
          options.zero->communication_data_type = at::kFloat;
        }
        const at::Tensor expected = oracle(
            {.dtype = dtype,
             .world = world,
             .micro_steps = 4,
             .average_each = false,
             .fp32_sums = true,
             .fp32_comm = travels});
        const at::Tensor trained = weights_after(
            options, world, dtype, [](Training& training) { training.train(0, kSteps * 4); });
        EXPECT_TRUE(at::equal(trained, expected)) << world << " ranks, travels " << travels;
      }
    }
  }
}

TEST_P(ZeroMasters, ClipByTheNormOfAllRanksPieces) {
  const auto& [number, dtype] = GetParam();
  for (const int world : {1, 2, 4}) {
    const at::Tensor expected = oracle({.dtype = dtype, .world = world, .max_norm = 0.05});
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

TEST_P(ZeroMasters, TakeWhatAProgramWrites) {
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

TEST_P(ZeroMasters, GoOnFromACheckpointToTheBit) {
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
    const at::Tensor expected = oracle({.dtype = at::kHalf, .world = 2, .scale = 1024});
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

struct Job {
  int world;
  int stage;
};

TEST(ZeroMastersSaved, GoToAnyStageAndAnyNumberOfRanksToTheBit) {
  const TestFolder folder;
  // The same batch on every rank: then the number of ranks does not matter.
  const auto steps = [](Training& training, int64_t from, int64_t to) {
    training.train(from, to, 0, /*same=*/true);
  };
  const at::Tensor unbroken =
      weights_after(stage(2), 1, at::kBFloat16, [&](Training& training) { steps(training, 0, 6); });
  const std::vector<Job> jobs = {{1, 2}, {2, 1}, {4, 2}, {2, 3}, {4, 3}};
  for (size_t saved = 0; saved < jobs.size(); ++saved) {
    const std::filesystem::path path = folder / std::to_string(saved);
    weights_after(
        stage(jobs[saved].stage), jobs[saved].world, at::kBFloat16, [&](Training& training) {
          steps(training, 0, 3);
          training.accelerator.save_state(path);
        });
    for (const Job& job : jobs) {
      const at::Tensor resumed =
          weights_after(stage(job.stage), job.world, at::kBFloat16, [&](Training& training) {
            training.accelerator.load_state(path);
            steps(training, 3, 6);
          });
      EXPECT_TRUE(at::equal(resumed, unbroken))
          << "saved by " << jobs[saved].world << " in stage " << jobs[saved].stage << ", to "
          << job.world << " in stage " << job.stage;
    }
  }
}

TEST(ZeroMastersSaved, ComeFromDataParallelAsItsValuesAndGoToItRounded) {
  const TestFolder folder;
  const at::Tensor plain = weights_after(stage(0), 2, at::kBFloat16, [&](Training& training) {
    training.train(0, 3);
    training.accelerator.save_state(folder / "plain");
  });
  for (const int number : {1, 2, 3}) {
    const std::filesystem::path path = folder / std::to_string(number);
    const at::Tensor trained =
        weights_after(stage(number), 2, at::kBFloat16, [&](Training& training) {
          training.accelerator.load_state(folder / "plain");
          EXPECT_TRUE(at::equal(training.weights(), plain));
          for (const at::Tensor& shard_slice : training.optimizer.parameters()) {
            EXPECT_TRUE(at::equal(shard_slice, shard_slice.to(at::kBFloat16).to(at::kFloat)));
          }
          training.train(3, 5);
          training.accelerator.save_state(path);
        });
    const at::Tensor loaded = weights_after(stage(0), 2, at::kBFloat16, [&](Training& training) {
      training.accelerator.load_state(path);
    });
    EXPECT_TRUE(at::equal(loaded, trained));
  }
}

TEST(ZeroMastersSaved, AreFp32InACheckpointAndTheParametersDtypeInAModel) {
  const TestFolder folder;
  for (const int number : {1, 2, 3}) {
    const std::filesystem::path path = folder / std::to_string(number);
    const at::Tensor weights =
        weights_after(stage(number), 2, at::kBFloat16, [&](Training& training) {
          training.train(0, 3);
          training.accelerator.save_state(path);
          training.accelerator.save_model(training.net, path.string() + "_model");
        });
    std::vector<at::Tensor> masters;
    std::vector<at::Tensor> values;
    const storage::SafetensorsMap model(path.string() + "_model/model.safetensors");
    const checkpoint::Reader reader(path);
    const NamedTensors saved = reader.tensor_set("model");
    for (const auto& item : new_net(at::kFloat)->named_parameters()) {
      for (const NamedTensor& tensor : saved) {
        if (tensor.name == item.key()) {
          EXPECT_EQ(tensor.tensor.scalar_type(), at::kFloat);
          masters.push_back(tensor.tensor);
        }
      }
      values.push_back(checkpoint::tensor_of(model, item.key()));
    }
    EXPECT_TRUE(at::equal(flat(masters).to(at::kBFloat16), weights));
    EXPECT_FALSE(at::equal(flat(masters), weights.to(at::kFloat)));
    EXPECT_TRUE(at::equal(flat(values), weights));
    EXPECT_EQ(flat(values).scalar_type(), at::kBFloat16);
  }
}

TEST(ZeroMastersSaved, AreNotLostInAFullStateDict) {
  for (const int number : {1, 2, 3}) {
    AcceleratorOptions options = stage(number);
    options.zero->state_dict_type = StateDictType::kFullStateDict;
    accelerated_ranks(2, options, [number](Accelerator& accelerator) {
      EXPECT_THAT(
          [&] { Training(accelerator, at::kBFloat16); },
          ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("FULL_STATE_DICT")))
          << number;
    });
  }
}

struct Way {
  std::string name;
  ZeroPlugin plugin;
};

std::vector<Way> ways(const std::filesystem::path& folder) {
  std::vector<Way> all;
  const OffloadOptimizer in_files{.device = OffloadDevice::kNvme, .nvme_path = folder};
  for (const int number : {1, 2, 3}) {
    ZeroPlugin plugin{.stage = number, .bucket_cap_bytes = 1000};
    plugin.offload_optimizer.device = OffloadDevice::kCpu;
    all.push_back({std::to_string(number) + " cpu", plugin});
    plugin.offload_optimizer = in_files;
    all.push_back({std::to_string(number) + " nvme", plugin});
    plugin.offload_optimizer.ratio = 0.5;
    all.push_back({std::to_string(number) + " half of it in files", plugin});
    plugin.offload_optimizer.ratio = 1;
    if (number == 3) {
      plugin.offload_param = {.device = OffloadDevice::kNvme, .nvme_path = folder, .max_in_cpu = 0};
      plugin.stage3_param_persistence_threshold = 50;
      all.push_back({"3 all in files", plugin});
    }
  }
  return all;
}

TEST(ZeroMastersOffloaded, GiveTheSameBits) {
  const TestFolder folder;
  const auto body = [](Training& training) {
    training.train(0, 3);
    {
      const torch::NoGradGuard no_grad;
      training.net->first->weight.slice(0, 3, 5).fill_(0.25);
    }
    training.train(3, 6);
  };
  for (const int world : {1, 2}) {
    for (const Way& way : ways(folder.path())) {
      SCOPED_TRACE(way.name + ", ranks " + std::to_string(world));
      EXPECT_TRUE(at::equal(
          weights_after({.zero = way.plugin}, world, at::kBFloat16, body),
          weights_after(stage(way.plugin.stage), world, at::kBFloat16, body)));
    }
  }
}

TEST(ZeroMastersOffloaded, AreSavedFromAndLoadedIntoTheirFiles) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "scratch");
  const at::Tensor unbroken =
      weights_after(stage(2), 2, at::kBFloat16, [](Training& training) { training.train(0, 6); });
  for (const Way& way : ways(folder / "scratch")) {
    SCOPED_TRACE(way.name);
    const std::filesystem::path path = folder / way.name;
    weights_after({.zero = way.plugin}, 2, at::kBFloat16, [&](Training& training) {
      training.train(0, 3);
      training.accelerator.save_state(path);
    });
    EXPECT_TRUE(at::equal(
        weights_after(
            {.zero = way.plugin},
            2,
            at::kBFloat16,
            [&](Training& training) {
              training.train(3, 4);
              training.accelerator.load_state(path);
              training.train(3, 6);
            }),
        unbroken));
  }
}

struct LargeImpl : torch::nn::Module {
  LargeImpl()
      : weight(register_parameter(
            "weight",
            at::sin(at::arange(96 * 96, at::kFloat)).to(at::kBFloat16).reshape({96, 96}) / 8)) {}
  at::Tensor weight;
};
TORCH_MODULE(Large);

TEST(ZeroMastersBuiltInParts, AreTheValuesOfTheModel) {
  std::vector<at::Tensor> trained(2);
  for (const bool in_parts : {false, true}) {
    accelerated_ranks(2, stage(3), [&](Accelerator& accelerator) {
      Large net = in_parts ? accelerator.zero_init([] { return Large(); }) : Large();
      EXPECT_EQ(comm::is_sharded_param(net->weight), in_parts);
      auto [model, optimizer] = accelerator.prepare(net, adamw(net->parameters(), 1e-4));
      for (int step = 0; step < 20; ++step) {
        accelerator.backward(at::matmul(at::ones({1, 96}, at::kBFloat16), model->weight).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
      const at::Tensor weights = model->weight.detach().clone();
      if (accelerator.is_main_process()) {
        trained[in_parts ? 1 : 0] = weights;
      }
    });
  }
  EXPECT_TRUE(at::equal(trained[0], trained[1]));
  EXPECT_FALSE(at::equal(trained[0], Large()->weight));
}

}  // namespace
}  // namespace lockstep
