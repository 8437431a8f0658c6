// SPDX-License-Identifier: Apache-2.0
// Frozen parameters of stage 3 that are kept in 8 bits, as those that a LoRA stands on are.
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/comm/thread/ranks.h"
#include "lockstep/zero/test_sharding.h"

namespace lockstep::zero {
namespace {

/// A frozen base of 4096 and 64 elements, and two factors beside it that are trained.
struct LoraImpl : torch::nn::Module {
  LoraImpl() {
    base = register_module("base", torch::nn::Linear(64, 64));
    down = register_module("down", torch::nn::Linear(64, 4));
    up = register_module("up", torch::nn::Linear(4, 64));
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (auto& parameter : parameters()) {
      const at::Tensor at = at::arange(parameter.numel(), at::kFloat);
      parameter.copy_((at::sin(at * 12.9898 + ++phase) / 8).reshape(parameter.sizes()));
    }
    for (auto& parameter : base->parameters()) {
      parameter.requires_grad_(false);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return base(x) + up(down(x)); }
  torch::nn::Linear base{nullptr}, down{nullptr}, up{nullptr};
};
TORCH_MODULE(Lora);

std::shared_ptr<Sharding> page_in_8_bits(const Lora& net, const Group& group, bool on = true) {
  return make_sharding(
      named(*net),
      group,
      {.cap_bytes = 1,  // One bucket a parameter.
       .first_cap_bytes = 1,
       .placement = ParamPlacement::kSharded,
       .coordinator = {.max_live_elements = 1, .prefetch = false},
       .plus_plus = {.quantized_frozen = on}});
}

at::Tensor inputs(int rank) {
  return at::cos(at::arange(2 * 64, at::kFloat) * (rank + 0.5)).reshape({2, 64});
}

TEST(QuantizedFrozenWeights, AllRanksComputeWithRoundedWeights) {
  for (const int world : {1, 2, 3}) {
    ranks(world, [](Group group) {
      Lora net;
      const at::Tensor exact = net->base->weight.detach().clone();
      const at::Tensor trained = net->down->weight.detach().clone();
      const auto sharding = page_in_8_bits(net, group);
      const at::Tensor now = net->base->weight.detach().clone();
      const double off = (now - exact).abs().max().item<double>();
      EXPECT_GT(off, 0);
      EXPECT_LE(off, exact.abs().max().item<double>() / 254 * 1.001);
      EXPECT_TRUE(at::equal(now, group.broadcast(now.clone()).wait())) << "equal bits";
      {
        const ExactValues asked(sharding->coordinator());
        EXPECT_TRUE(at::equal(net->base->weight.detach().clone(), now)) << "that is what it is";
      }
      EXPECT_TRUE(at::equal(net->down->weight.detach(), trained)) << "what is trained is exact";
    });
  }
}

TEST(QuantizedFrozenWeights, ARankStoresAndSendsAQuarterOfTheBytes) {
  const auto frozen_bytes = [](bool in_8_bits) {
    int64_t bytes = 0;
    ranks(2, [&](Group group) {
      Lora net;
      const auto sharding = page_in_8_bits(net, group, in_8_bits);
      sharding->finish_parameter_use();
      int64_t own = 0;
      for (const at::Tensor& memory : sharding->memory().parameters) {
        own += static_cast<int64_t>(memory.nbytes());
      }
      for (const auto& [values, shard_slice] : sharding->slices().all()) {
        if (shard_slice.parameter.requires_grad()) {
          own -= static_cast<int64_t>(values->numel()) * 4;
        }
      }
      if (group.rank() == 0) {
        bytes = own;
      }
    });
    return bytes;
  };
  const int64_t exact = frozen_bytes(false);
  EXPECT_GE(exact, 4160 * 4 / 2);
  EXPECT_LT(static_cast<double>(frozen_bytes(true)), 0.3 * static_cast<double>(exact));
}

TEST(QuantizedFrozenWeights, TrainingEqualsThatWithWeightsRoundedBefore) {
  for (const int world : {1, 2}) {
    ranks(world, [](Group group) {
      const auto train = [&](Lora& net, Sharding& sharding) {
        for (int step = 0; step < 5; ++step) {
          run_backward(sharding, net->forward(inputs(group.rank())).square().mean());
          update(sharding, 0.1);
        }
        return net->up->weight.detach().clone();
      };
      Lora kept;
      const auto sharding = page_in_8_bits(kept, group);
      Lora rounded;
      {
        const torch::NoGradGuard no_grad;
        rounded->base->weight.copy_(kept->base->weight.detach().clone());
        rounded->base->bias.copy_(kept->base->bias.detach().clone());
      }
      const auto plain = page_in_8_bits(rounded, group, false);
      EXPECT_TRUE(at::equal(train(kept, *sharding), train(rounded, *plain)));
    });
  }
}

TEST(QuantizedFrozenWeights, WrittenValuesAreRoundedAndKept) {
  ranks(2, [](Group group) {
    Lora net;
    const auto sharding = page_in_8_bits(net, group);
    {
      const torch::NoGradGuard no_grad;
      net->base->weight.copy_(at::full({64, 64}, 0.5));
    }
    sharding->finish_parameter_use();
    EXPECT_TRUE(at::allclose(net->base->weight.detach(), at::full({64, 64}, 0.5), 1e-6));
  });
}

TEST(QuantizedFrozenWeights, SlicesAreCopiesThatCanBeWrittenBack) {
  ranks(2, [](Group group) {
    Lora net;
    const auto sharding = page_in_8_bits(net, group);
    const at::Tensor before = net->base->weight.detach().clone();
    EXPECT_TRUE(sharding->slices().is_quantized(net->base->weight));
    EXPECT_FALSE(sharding->slices().is_quantized(net->up->weight));
    std::vector<ShardSlice> shard_slices = sharding->slices().saved(net->base->weight);
    ASSERT_EQ(shard_slices.size(), 1U);
    EXPECT_TRUE(at::equal(
        shard_slices[0].values,
        before.reshape({-1}).narrow(0, shard_slices[0].begin, shard_slices[0].values.numel())));
    sharding->finish_parameter_use();
    sharding->store_quantized(shard_slices);
    EXPECT_TRUE(at::equal(net->base->weight.detach(), before)) << "bit for bit";
    shard_slices[0].values.neg_();
    sharding->finish_parameter_use();
    sharding->store_quantized(shard_slices);
    EXPECT_TRUE(at::allclose(net->base->weight.detach(), -before, 1e-5));
  });
}

TEST(QuantizedFrozenWeights, SmallValuesDoNotUseTheScaleOfReplacedLargeOnes) {
  ranks(2, [](Group group) {
    Lora net;
    const auto sharding = make_sharding(
        named(*net),
        group,
        {.placement = ParamPlacement::kSharded,
         .coordinator = {.max_live_elements = 1, .prefetch = false},
         .plus_plus = {.quantized_frozen = true}});
    const std::vector<at::Tensor> frozen = {net->base->weight, net->base->bias};
    std::vector<at::Tensor> wanted;
    std::vector<ShardSlice> shard_slices;
    for (const at::Tensor& parameter : frozen) {
      wanted.push_back(parameter.detach() / 1000);
      for (ShardSlice& shard_slice : sharding->slices().saved(parameter)) {
        shard_slice.values.div_(1000);
        shard_slices.push_back(std::move(shard_slice));
      }
    }
    sharding->finish_parameter_use();
    sharding->store_quantized(shard_slices);
    const double step = 1.0 / 8 / 1000 / 127;
    for (size_t i = 0; i < frozen.size(); ++i) {
      EXPECT_TRUE(at::allclose(frozen[i].detach(), wanted[i], 0, 0.51 * step)) << i;
    }
  });
}

}  // namespace
}  // namespace lockstep::zero
