// SPDX-License-Identifier: Apache-2.0

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/zero_setup/zero_units.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/weights/load_model.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/zero/sharding.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

/// Two transformer layers between two linear ones.
torch::nn::Sequential transformer() {
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(8, 16));
  for (int i = 0; i < 2; ++i) {
    net->push_back(torch::nn::TransformerEncoderLayer(
        torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0)));
  }
  net->push_back(torch::nn::Linear(16, 2));
  double phase = 0;
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(
        torch::sin(torch::arange(parameter.numel(), torch::kFloat) + ++phase)
            .reshape(parameter.sizes()) /
        4);
  }
  return net;
}

/// All weights after some steps on two processes.
at::Tensor transformer_weights(const AcceleratorOptions& options) {
  at::Tensor weights;
  accelerated_ranks(2, options, [&](Accelerator& accelerator) {
    auto net = transformer();
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
    for (int step = 0; step < 3; ++step) {
      auto micro_step = accelerator.accumulate(model);
      const at::Tensor x = at::sin(at::arange(5 * 3 * 8, at::kFloat) + step).reshape({5, 3, 8});
      accelerator.backward(model->forward(x).square().sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : model->parameters()) {
      all.push_back(parameter.detach().reshape({-1}).clone());
    }
    if (accelerator.is_main_process()) {
      weights = at::cat(all);
    }
  });
  return weights;
}

/// `from` to `to` steps in which all processes have the same batch: bit by bit what one does, if
/// their number is a power of two.
void take_steps(
    Accelerator& accelerator,
    torch::nn::Sequential& model,
    Optimizer& optimizer,
    int from,
    int to) {
  for (int step = from; step < to; ++step) {
    const at::Tensor x = at::sin(at::arange(5 * 3 * 8, at::kFloat) + step).reshape({5, 3, 8});
    accelerator.backward(model->forward(x).square().sum());
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(FsdpPlugin, EveryStrategyTrainsWithTheBitsOfDataParallel) {
  const at::Tensor expected = transformer_weights({});
  for (const ShardingStrategy strategy :
       {ShardingStrategy::kFullShard,
        ShardingStrategy::kShardGradOp,
        ShardingStrategy::kNoShard,
        ShardingStrategy::kHybridShard,
        ShardingStrategy::kHybridShardZero2}) {
    EXPECT_TRUE(at::equal(
        transformer_weights({.fsdp_plugin = FsdpPlugin{.sharding_strategy = strategy}}), expected))
        << static_cast<int>(strategy);
  }
  for (const AutoWrapPolicy policy : {AutoWrapPolicy::kSize, AutoWrapPolicy::kTransformer}) {
    FsdpPlugin plugin{.auto_wrap_policy = policy, .min_num_params = 500};
    if (policy == AutoWrapPolicy::kTransformer) {
      plugin.transformer_layer_cls_to_wrap = {"TransformerEncoderLayer"};
    }
    EXPECT_TRUE(at::equal(transformer_weights({.fsdp_plugin = plugin}), expected));
  }
}

TEST(FsdpPlugin, ClassesToWrapSayNothingWhereParametersStay) {
  const at::Tensor expected = transformer_weights({});
  FsdpPlugin plugin{
      .auto_wrap_policy = AutoWrapPolicy::kTransformer,
      .transformer_layer_cls_to_wrap = {"TransformerEncoderLayer"}};
  EXPECT_EQ(plugin.zero(4)->stage3_unit_classes, plugin.transformer_layer_cls_to_wrap);
  for (const ShardingStrategy strategy :
       {ShardingStrategy::kShardGradOp, ShardingStrategy::kHybridShardZero2}) {
    plugin.sharding_strategy = strategy;
    EXPECT_TRUE(at::equal(transformer_weights({.fsdp_plugin = plugin}), expected));
  }
  plugin.sharding_strategy = ShardingStrategy::kFullShard;
  plugin.reshard_after_forward = false;
  EXPECT_TRUE(at::equal(transformer_weights({.fsdp_plugin = plugin}), expected));
}

TEST(FsdpPlugin, HybridShardKeepsSecondCopiesOnEachHost) {
  const auto weights_with = [](const AcceleratorOptions& options, bool second_copies) {
    at::Tensor weights;
    ranks(4, [&](Group group) {
      WorldSpec world;  // Two hosts of two processes.
      world.rank = group.rank();
      world.size = group.size();
      world.local_rank = group.rank() % 2;
      world.local_size = 2;
      Accelerator accelerator(options, world, std::move(group));
      auto net = transformer();
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
      take_steps(accelerator, model, optimizer, 0, 3);
      if (second_copies) {
        EXPECT_GT(optimizer.sharding()->coordinator()->secondary_gathers(), 0);
      }
      std::vector<at::Tensor> all;
      for (const at::Tensor& parameter : model->parameters()) {
        all.push_back(parameter.detach().reshape({-1}).clone());
      }
      if (accelerator.is_main_process()) {
        weights = at::cat(all);
      }
    });
    return weights;
  };
  const FsdpPlugin hybrid{
      .sharding_strategy = ShardingStrategy::kHybridShard,
      .auto_wrap_policy = AutoWrapPolicy::kSize,
      .min_num_params = 500};
  EXPECT_TRUE(at::equal(weights_with({.fsdp_plugin = hybrid}, true), weights_with({}, false)));
}

TEST(FsdpPlugin, TranslatesToZeroOptions) {
  EXPECT_EQ(FsdpPlugin().zero(4)->stage, 3);
  EXPECT_EQ(FsdpPlugin{.reshard_after_forward = false}.zero(4)->stage, 2);
  EXPECT_EQ(FsdpPlugin{.reshard_after_forward = true}.zero(4)->stage, 3);
  EXPECT_FALSE(FsdpPlugin{.sharding_strategy = ShardingStrategy::kNoShard}.zero(4));
  EXPECT_EQ(
      FsdpPlugin{.sharding_strategy = ShardingStrategy::kHybridShard}
          .zero(4)
          ->zero_hpz_partition_size,
      4);
  EXPECT_FALSE(FsdpPlugin{.backward_prefetch = BackwardPrefetch::kNone}.zero(4)->stage3_prefetch);
  EXPECT_EQ(
      (FsdpPlugin{.auto_wrap_policy = AutoWrapPolicy::kSize, .min_num_params = 1000})
          .zero(4)
          ->bucket_cap_bytes,
      4000);
}

TEST(FsdpPlugin, ContradictoryOptionsAreRefused) {
  const auto refused = [](const FsdpPlugin& plugin, int local_size = 4) {
    return error_of([&] { plugin.zero(local_size); });
  };
  EXPECT_THAT(
      refused({.sharding_strategy = ShardingStrategy::kShardGradOp, .reshard_after_forward = true}),
      HasSubstr("reshard_after_forward and sharding_strategy are both set"));
  EXPECT_THAT(
      refused({.auto_wrap_policy = AutoWrapPolicy::kTransformer}), HasSubstr("belong together"));
  EXPECT_THAT(
      refused({.transformer_layer_cls_to_wrap = {"Linear"}}), HasSubstr("give both or neither"));
  EXPECT_THAT(
      refused({.auto_wrap_policy = AutoWrapPolicy::kSize, .min_num_params = 0}),
      HasSubstr("min_num_params is 0"));
  EXPECT_THAT(
      refused({.sharding_strategy = ShardingStrategy::kHybridShard}, 0),
      HasSubstr("the same number of processes on each host"));
  EXPECT_THAT(
      error_of([] {
        Accelerator(
            {.zero = ZeroPlugin(), .deepspeed_plugin = DeepSpeedPlugin()}, WorldSpec(), Group());
      }),
      HasSubstr("give only one"));
}

TEST(FsdpPlugin, OffloadsTheStatesOfEachStage) {
  const FsdpPlugin full{.cpu_offload = true};
  EXPECT_EQ(full.zero(4)->offload_optimizer.device, OffloadDevice::kCpu);
  EXPECT_EQ(full.zero(4)->offload_param.device, OffloadDevice::kCpu);
  const FsdpPlugin second{.sharding_strategy = ShardingStrategy::kShardGradOp, .cpu_offload = true};
  EXPECT_EQ(second.zero(4)->offload_optimizer.device, OffloadDevice::kCpu);
  EXPECT_EQ(second.zero(4)->offload_param.device, OffloadDevice::kNone);
  EXPECT_THAT(
      error_of([] {
        static_cast<void>(
            FsdpPlugin{.sharding_strategy = ShardingStrategy::kNoShard, .cpu_offload = true}.zero(
                4));
      }),
      HasSubstr("for cpu_offload use"));
  EXPECT_TRUE(at::equal(transformer_weights({.fsdp_plugin = full}), transformer_weights({})));
}

/// All weights once `world` processes have done `use` with a model and its optimizer.
at::Tensor weights_after(
    int world,
    const AcceleratorOptions& options,
    const std::function<void(Accelerator&, torch::nn::Sequential&, Optimizer&)>& use) {
  at::Tensor weights;
  accelerated_ranks(world, options, [&](Accelerator& accelerator) {
    auto net = transformer();
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
    use(accelerator, model, optimizer);
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : model->parameters()) {
      all.push_back(parameter.detach().reshape({-1}).clone());
    }
    if (accelerator.is_main_process()) {
      weights = at::cat(all);
    }
  });
  return weights;
}

AcceleratorOptions full_state_dict() {
  return {
      .fsdp_plugin = FsdpPlugin{
          .auto_wrap_policy = AutoWrapPolicy::kSize,
          .min_num_params = 500,
          .state_dict_type = StateDictType::kFullStateDict}};
}

TEST(FsdpPlugin, AFullStateDictIsTheFileOfDataParallel) {
  const TestFolder folder;
  const auto save = [&](const AcceleratorOptions& options, const std::string& name, bool async) {
    const auto path = folder.path() / name;
    weights_after(2, options, [&](Accelerator& accelerator, auto& model, Optimizer& optimizer) {
      take_steps(accelerator, model, optimizer, 0, 2);
      accelerator.save_state(path / "first", {.async = async});  // Whose memory the next one uses.
      take_steps(accelerator, model, optimizer, 2, 3);
      accelerator.save_state(path / "second", {.async = async});
      take_steps(accelerator, model, optimizer, 3, 4);
      accelerator.wait_for_save();
    });
    std::string both;
    for (const char* which : {"first", "second"}) {
      std::ifstream file(path / which / "model.safetensors", std::ios::binary);
      EXPECT_TRUE(file.is_open()) << path;
      both.append(std::istreambuf_iterator<char>(file), {});
    }
    return both;
  };
  const std::string expected = save({}, "plain", false);
  EXPECT_EQ(save(full_state_dict(), "full", false), expected);
  EXPECT_EQ(save(full_state_dict(), "async", true), expected);
  EXPECT_FALSE(std::filesystem::exists(
      folder.path() / "full" / "second" / "model-00001-of-00002.safetensors"));
}

TEST(FsdpPlugin, AFullStateDictLoadsInAnyStrategyAndWithoutOne) {
  const TestFolder folder;
  const auto path = folder.path() / "full";
  const at::Tensor unbroken =
      weights_after(1, {}, [](Accelerator& accelerator, auto& model, Optimizer& optimizer) {
        take_steps(accelerator, model, optimizer, 0, 5);
      });
  const at::Tensor saved = weights_after(
      4, full_state_dict(), [&](Accelerator& accelerator, auto& model, Optimizer& optimizer) {
        take_steps(accelerator, model, optimizer, 0, 3);
        accelerator.save_state(path);
      });
  auto plain = transformer();
  checkpoint::load_checkpoint_in_model(*plain, path / "model.safetensors");
  std::vector<at::Tensor> loaded;
  for (const at::Tensor& parameter : plain->parameters()) {
    loaded.push_back(parameter.detach().reshape({-1}));
  }
  EXPECT_TRUE(at::equal(at::cat(loaded), saved));
  const AcceleratorOptions second{
      .fsdp_plugin = FsdpPlugin{.sharding_strategy = ShardingStrategy::kShardGradOp}};
  const AcceleratorOptions sharded{.fsdp_plugin = FsdpPlugin()};
  for (const auto& [world, options] : std::vector<std::pair<int, AcceleratorOptions>>{
           {1, {}}, {2, second}, {2, full_state_dict()}, {4, sharded}}) {
    const at::Tensor resumed = weights_after(
        world, options, [&](Accelerator& accelerator, auto& model, Optimizer& optimizer) {
          accelerator.load_state(path);
          take_steps(accelerator, model, optimizer, 3, 5);
        });
    EXPECT_TRUE(at::equal(resumed, unbroken)) << world;
  }
}

TEST(FsdpPlugin, ALocalStateDictIsRefused) {
  EXPECT_THAT(
      error_of([] {
        static_cast<void>(FsdpPlugin{.state_dict_type = StateDictType::kLocalStateDict}.zero(4));
      }),
      HasSubstr("use SHARDED_STATE_DICT"));
  EXPECT_THAT(
      error_of([] {
        Accelerator(
            {.zero = ZeroPlugin{.state_dict_type = StateDictType::kLocalStateDict}},
            WorldSpec(),
            Group());
      }),
      HasSubstr("use SHARDED_STATE_DICT"));
}

/// LOCKSTEP_ZERO_STAGE, for as long as it lives.
class LaunchedStage {
 public:
  explicit LaunchedStage(const char* stage) { setenv("LOCKSTEP_ZERO_STAGE", stage, 1); }
  ~LaunchedStage() { unsetenv("LOCKSTEP_ZERO_STAGE"); }
  LaunchedStage(const LaunchedStage&) = delete;
  LaunchedStage& operator=(const LaunchedStage&) = delete;
};

TEST(LaunchedZeroStage, CountsWhereTheProgramSaysNothing) {
  const auto elements_of = [](const AcceleratorOptions& options) {
    int64_t elements = 0;
    weights_after(2, options, [&](Accelerator& accelerator, auto& model, Optimizer& optimizer) {
      take_steps(accelerator, model, optimizer, 0, 1);
      if (accelerator.is_main_process()) {
        elements = comm::is_sharded_param(model->parameters()[0]) ? 3 : 0;
        for (const at::Tensor& shard_slice : optimizer.parameters()) {
          elements += shard_slice.numel();
        }
      }
    });
    return elements;
  };
  const int64_t full = elements_of({});
  const int64_t sharded = elements_of({.zero = ZeroPlugin{.stage = 3}});
  ASSERT_LT(sharded, full);
  {
    const LaunchedStage stage("3");
    EXPECT_EQ(elements_of({}), sharded);
    EXPECT_EQ(elements_of({.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 0}}), full);
    EXPECT_EQ(
        elements_of({.fsdp_plugin = FsdpPlugin{.sharding_strategy = ShardingStrategy::kNoShard}}),
        full);
  }
  {
    const LaunchedStage stage("0");
    EXPECT_EQ(elements_of({}), full);
  }
  const LaunchedStage stage("4");
  EXPECT_THAT(
      error_of([] { Accelerator({}, WorldSpec(), Group()); }), HasSubstr("LOCKSTEP_ZERO_STAGE"));
}

/// A variable of the environment, for as long as it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(LaunchedFsdp, AppliesIfNothingElseIsSet) {
  const auto is_sharded_param = [] {
    bool sharded = false;
    weights_after(2, {}, [&](Accelerator& accelerator, auto& model, Optimizer& optimizer) {
      take_steps(accelerator, model, optimizer, 0, 1);
      if (accelerator.is_main_process()) {
        sharded = comm::is_sharded_param(model->parameters()[0]);
      }
    });
    return sharded;
  };
  const Variable strategy("FSDP_SHARDING_STRATEGY", "FULL_SHARD");
  EXPECT_FALSE(is_sharded_param());
  const Variable use("ACCELERATE_USE_FSDP", "true");
  EXPECT_TRUE(is_sharded_param());
  const LaunchedStage stage("0");
  EXPECT_FALSE(is_sharded_param());
}

TEST(DeepSpeedPlugin, OffloadsToFiles) {
  const TestFolder folder;
  const DeepSpeedPlugin plugin{
      .zero_stage = 3,
      .offload_optimizer_device = OffloadDevice::kNvme,
      .offload_param_device = OffloadDevice::kNvme,
      .offload_optimizer_nvme_path = folder.path(),
      .offload_param_nvme_path = folder.path()};
  EXPECT_TRUE(
      at::equal(transformer_weights({.deepspeed_plugin = plugin}), transformer_weights({})));
  EXPECT_THAT(
      error_of([] {
        static_cast<void>(
            DeepSpeedPlugin{.zero_stage = 0, .offload_optimizer_device = OffloadDevice::kCpu}
                .zero());
      }),
      HasSubstr("from stage 1 on"));
}

TEST(DeepSpeedPlugin, TrainsAndAccumulatesAsItSays) {
  for (const int stage : {0, 1, 2, 3}) {
    const at::Tensor expected = transformer_weights({.gradient_accumulation_steps = 3});
    const at::Tensor here = transformer_weights(
        {.deepspeed_plugin =
             DeepSpeedPlugin{.zero_stage = stage, .gradient_accumulation_steps = 3}});
    EXPECT_TRUE(at::allclose(here, expected, 1e-5, 1e-6)) << stage;
  }
  EXPECT_THAT(
      error_of([] { static_cast<void>(DeepSpeedPlugin{.zero_stage = 4}.zero()); }),
      HasSubstr("expected 0, 1, 2 or 3"));
  EXPECT_THAT(
      error_of([] {
        Accelerator(
            {.gradient_accumulation_steps = 2,
             .deepspeed_plugin = DeepSpeedPlugin{.gradient_accumulation_steps = 2}},
            WorldSpec(),
            Group());
      }),
      HasSubstr("give only one"));
}

TEST(ZeroUnits, AreTheParametersOfModulesOfAClass) {
  auto net = transformer();
  const NamedTensors parameters = parameters_of(*net);
  const internal::NamedClasses classes = classes_of(*net);
  const auto layers = internal::units_of(parameters, classes, {"TransformerEncoderLayer"});
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_EQ(layers[0].size(), 12U);
  EXPECT_TRUE(layers[1][0].is_same(net[2]->parameters()[0]));
  EXPECT_TRUE(internal::units_of(parameters, classes, {}).empty());
  EXPECT_THAT(
      error_of([&] { internal::units_of(parameters, classes, {"Block"}); }),
      HasSubstr("no module of the model is a Block; its modules are"));
}

TEST(ZeroUnits, AreGatheredTogetherInStage3) {
  const ZeroPlugin plugin{
      .stage = 3, .bucket_cap_bytes = 1, .stage3_unit_classes = {"TransformerEncoderLayer"}};
  EXPECT_TRUE(at::equal(transformer_weights({.zero = plugin}), transformer_weights({})));
  ZeroPlugin second = plugin;
  second.stage = 2;
  EXPECT_THAT(
      error_of([&] { Accelerator({.zero = second}, WorldSpec(), Group()); }),
      HasSubstr("stage3_unit_classes"));
}

}  // namespace
}  // namespace lockstep
