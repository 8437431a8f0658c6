// SPDX-License-Identifier: Apache-2.0
// Stage 3: parameters that come when they are touched.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/zero/activation/activation_checkpoint.h"
#include "lockstep/zero/coordinator/init.h"
#include "lockstep/zero/sharded_model.h"
#include "lockstep/zero/test_sharding.h"
#include "tests/nets.h"

namespace lockstep::zero {
namespace {

using ::testing::HasSubstr;

void fill(torch::nn::Module& module) {
  test::fill_with_sines(module, {.scale = 1.0 / 4, .phase_step = 1});
}

std::shared_ptr<Sharding> unshard_sharding(
    const torch::nn::Module& module,
    const Group& group,
    int64_t cap_bytes,
    ParamCoordinatorOptions coordinator = {}) {
  return make_sharding(
      named(module),
      group,
      {.cap_bytes = cap_bytes,
       .first_cap_bytes = cap_bytes,
       .placement = ParamPlacement::kSharded,
       .coordinator = coordinator});
}

torch::nn::Sequential unshard_layers(int64_t layers) {
  return test::sine_layers(layers, 16, {.scale = 1.0 / 4, .phase_step = 1});
}

/// A bit of everything: tied, recurrent, attention.
struct VariedImpl : torch::nn::Module {
  VariedImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(32, 16));
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions(std::vector<int64_t>{16})));
    linear = register_module("linear", unshard_layers(4));
    lstm = register_module(
        "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(16, 16).num_layers(2).bidirectional(true)));
    layer = register_module(
        "layer",
        torch::nn::TransformerEncoderLayer(
            torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0)));
    fill(*this);
  }
  at::Tensor loss(int step) {
    const at::Tensor ids = (at::arange(24, at::kLong).reshape({4, 6}) * (step + 3)) % 32;
    at::Tensor x = norm(embedding(ids));
    x = layer(linear->forward(x)) + std::get<0>(lstm(x)).slice(2, 0, 16);
    return torch::matmul(x, embedding->weight.t()).square().mean();
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Sequential linear{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::TransformerEncoderLayer layer{nullptr};
};
TORCH_MODULE(Varied);

/// Losses of some steps in one process: those of every rank, since all have the same batch.
std::vector<double> losses_of_one_process(
    torch::nn::Module& net, const std::function<at::Tensor(int)>& loss_of, int steps) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor loss = loss_of(step);
    losses.push_back(loss.item<double>());
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) {
      if (parameter.grad().defined()) {
        parameter.sub_(parameter.grad() * 0.05);
        parameter.mutable_grad().reset();
      }
    }
  }
  return losses;
}

TEST(Unshard, ValuesExistDuringUseAndAreFreedAfterwards) {
  ranks(2, [](Group group) {
    auto net = unshard_layers(6);
    const at::Tensor expected = net->parameters()[0].detach().clone();
    const auto sharding = unshard_sharding(*net, group, 1, {.max_live_elements = 600});
    EXPECT_EQ(sharding->coordinator()->unsharded_elements(), 0);
    EXPECT_TRUE(at::equal(net->parameters()[0], expected));
    EXPECT_GT(sharding->coordinator()->unsharded_elements(), 0);
    EXPECT_LE(sharding->coordinator()->unsharded_elements(), 600);
    const at::Tensor view = net->parameters()[0].t();
    net->forward(at::ones({2, 16}));
    EXPECT_LE(sharding->coordinator()->max_unsharded_elements(), 600);
    EXPECT_TRUE(at::equal(view, expected.t())) << "views bring values, too";
  });
}

TEST(Unshard, MemoryOfAShardedParameterCannotBeRead) {
  ranks(2, [](Group group) {
    auto net = unshard_layers(2);
    const auto sharding = unshard_sharding(*net, group, 1);
    try {
      net->parameters()[0].data_ptr<float>();
      FAIL() << "there is no memory";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("with_gathered_parameters"));
    }
  });
}

TEST(Unshard, TrainsAsOneProcess) {
  Varied alone;
  const auto expected = losses_of_one_process(
      *alone, [&](int step) { return alone->loss(step); }, 5);
  for (const int world : {2, 3}) {
    for (const int64_t cap : {int64_t{1}, int64_t{6000}}) {
      for (const int64_t live : {int64_t{1}, int64_t{1} << 30}) {
        ranks(world, [&](Group group) {
          Varied net;
          const auto sharding = unshard_sharding(*net, group, cap, {.max_live_elements = live});
          for (int step = 0; step < 5; ++step) {
            const at::Tensor loss = net->loss(step);
            EXPECT_NEAR(loss.item<double>(), expected[step], 2e-6) << step;
            run_backward(*sharding, loss);
            update(*sharding, 0.05);
          }
        });
      }
    }
  }
}

TEST(Unshard, TheNextUnitIsPrefetchedFromTheSecondStepOn) {
  ranks(2, [](Group group) {
    auto net = unshard_layers(6);
    const auto sharding = unshard_sharding(*net, group, 1, {.max_live_elements = 3 * 600});
    for (int step = 0; step < 2; ++step) {
      run_backward(*sharding, net->forward(at::ones({2, 16})).square().sum());
      update(*sharding, 0.01);
    }
    const int64_t before = sharding->coordinator()->gathers();
    const int64_t prefetched = sharding->coordinator()->prefetches();
    run_backward(*sharding, net->forward(at::ones({2, 16})).square().sum());
    const int64_t gathers = sharding->coordinator()->gathers() - before;
    EXPECT_GE(sharding->coordinator()->prefetches() - prefetched, gathers - 4);
    EXPECT_LE(gathers, 2 * 12) << "twice each at most";
  });
}

TEST(Unshard, RanksMayUseOtherParametersThanOthers) {
  ranks(3, [](Group group) {
    auto net = unshard_layers(5);
    const auto sharding = unshard_sharding(*net, group, 1);
    for (int step = 0; step < 4; ++step) {
      at::Tensor x = at::ones({2, 16});
      const auto layers = net->children();
      for (size_t i = 0; i < layers.size(); ++i) {
        if ((static_cast<int>(i) + step) % 3 != group.rank()) {
          x = layers[i]->as<torch::nn::Linear>()->forward(x);
        }
      }
      run_backward(*sharding, x.sum());
      update(*sharding, 0.01);
    }
    const at::Tensor first = net->parameters()[0].detach().clone();
    EXPECT_TRUE(at::equal(first, group.broadcast(first.clone()).wait()));
  });
}

TEST(Unshard, EvaluationUnshardsAsTrainingDoes) {
  ranks(2, [](Group group) {
    auto net = unshard_layers(4);
    const at::Tensor expected = net->forward(at::ones({2, 16})).detach();
    const auto sharding = unshard_sharding(*net, group, 1, {.max_live_elements = 600});
    {
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(net->forward(at::ones({2, 16})), expected));
    }
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(at::equal(net->forward(at::ones({2, 16})), expected));
    }
    run_backward(*sharding, net->forward(at::ones({2, 16})).sum());
    update(*sharding, 0.01);
  });
}

TEST(Unshard, WritesToParametersPersist) {
  ranks(2, [](Group group) {
    auto net = unshard_layers(4);
    const auto sharding = unshard_sharding(*net, group, 1, {.max_live_elements = 1});
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) {
        parameter.mul_(2);
        parameter.add_(1);
      }
    }
    auto twice = unshard_layers(4);
    for (size_t i = 0; i < twice->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(net->parameters()[i], twice->parameters()[i] * 2 + 1));
    }
  });
}

TEST(Unshard, FrozenParametersAreGatheredAndFreedToo) {
  ranks(2, [](Group group) {
    auto net = unshard_layers(3);
    for (auto& parameter : net->children()[0]->parameters()) {
      parameter.set_requires_grad(false);
    }
    const auto sharding = unshard_sharding(*net, group, 1, {.max_live_elements = 600});
    EXPECT_TRUE(comm::is_sharded_param(net->parameters()[0]));
    run_backward(*sharding, net->forward(at::ones({2, 16})).sum());
    EXPECT_FALSE(sharding->slices().of({net->parameters()[0]})[0].grad().defined());
    EXPECT_TRUE(sharding->slices().of({net->parameters()[2]})[0].grad().defined());
  });
}

TEST(Unshard, SmallParametersMayStay) {
  ranks(2, [](Group group) {
    auto net = unshard_layers(3);
    const auto sharding = make_sharding(
        named(*net),
        group,
        {.placement = ParamPlacement::kSharded, .param_persistence_threshold = 16});
    EXPECT_TRUE(comm::is_sharded_param(net->parameters()[0]));
    EXPECT_FALSE(comm::is_sharded_param(net->parameters()[1]));
    run_backward(*sharding, net->forward(at::ones({2, 16})).sum());
    update(*sharding, 0.01);
  });
}

TEST(Unshard, SmallParametersStayUpToTheLimitInTheModelsOrder) {
  ranks(2, [](Group group) {
    auto net = unshard_layers(3);
    // Biases of 16, and a weight of 256 that is too large for the first bound alone.
    net->parameters()[3].set_requires_grad(false);
    const auto sharding = make_sharding(
        named(*net),
        group,
        {.placement = ParamPlacement::kSharded,
         .param_persistence_threshold = 16,
         .model_persistence_threshold = 40});
    EXPECT_FALSE(comm::is_sharded_param(net->parameters()[1]));
    EXPECT_FALSE(comm::is_sharded_param(net->parameters()[3]));  // Frozen ones count, too.
    EXPECT_TRUE(comm::is_sharded_param(net->parameters()[5]));
    run_backward(*sharding, net->forward(at::ones({2, 16})).sum());
    update(*sharding, 0.01);
  });
}

/// What DeepSpeed 0.19.8's mark_persistent_parameters marks.
TEST(Unshard, AUnitThatDoesNotFitIsSkippedAndASmallerLaterOneStays) {
  NamedTensors all;
  for (const int64_t numel : {6, 5, 20, 2, 3}) {
    all.push_back({"p" + std::to_string(numel), at::zeros({numel})});
  }
  all.push_back({"again", all[0].tensor});
  const auto kept_sizes = [&](int64_t up_to, int64_t in_all) {
    const auto kept = persistent_parameters(all, up_to, in_all);
    std::vector<int64_t> sizes;
    for (const NamedTensor& item : all) {
      if (item.name != "again" && kept.contains(item.tensor.unsafeGetTensorImpl())) {
        sizes.push_back(item.tensor.numel());
      }
    }
    return sizes;
  };
  EXPECT_EQ(kept_sizes(10, 10), (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(kept_sizes(10, 100), (std::vector<int64_t>{6, 5, 2, 3}));
  EXPECT_EQ(kept_sizes(100, 25), (std::vector<int64_t>{6, 5, 2, 3}));
  EXPECT_EQ(kept_sizes(4, 4), (std::vector<int64_t>{2}));
  EXPECT_TRUE(kept_sizes(100, 0).empty());
}

TEST(Unshard, ARankThatReadsAParameterAloneGetsAnError) {
  ranks(2, [](Group group) {
    auto net = unshard_layers(3);
    const auto sharding = unshard_sharding(*net, group, 1);
    if (group.rank() == 0) {
      try {
        net->parameters()[2].sum();
        FAIL() << "rank 1 is elsewhere";
      } catch (const CommError& error) {
        EXPECT_THAT(
            error.what(), HasSubstr("the all-gather of 1.weight (ZeRO stage 3) for an operation"));
        EXPECT_THAT(error.what(), HasSubstr("rank 1 calls barrier"));
      }
    } else {
      EXPECT_THROW(group.barrier(), CommError);
    }
  });
}

/// Elements of memory that a model's parameters have here, by storage.
int64_t built_elements(Init& init, const Group& group, int64_t layers) {
  torch::nn::Sequential net;
  {
    const InitInterceptScope watching(init);
    for (int64_t i = 0; i < layers; ++i) {
      net->push_back(torch::nn::Linear(64, 64));
    }
  }
  init.finish();
  int64_t paged = 0;
  for (const at::Tensor& parameter : net->parameters()) {
    paged += comm::is_sharded_param(parameter) ? parameter.numel() : 0;
  }
  EXPECT_EQ(paged, layers * 64 * 64) << "on rank " << group.rank();
  return paged;
}

TEST(ZeroInit, AllRanksHaveRank0sValues) {
  ranks(3, [&](Group group) {
    Init init(group, at::kCPU, 1000);
    torch::nn::Sequential net;
    {
      const InitInterceptScope watching(init);
      for (const int64_t out : {64, 64, 8}) {
        torch::nn::Linear layer(64, out);
        const torch::NoGradGuard no_grad;
        layer->weight.copy_(
            at::arange(out * 64, at::kFloat).reshape({out, 64}) / (1 + group.rank()));
        layer->bias.fill_(group.rank());
        net->push_back(layer);
      }
    }
    init.finish();
    EXPECT_TRUE(comm::is_sharded_param(net->parameters()[0]));
    EXPECT_FALSE(comm::is_sharded_param(net->parameters()[1]));
    const auto sharding = unshard_sharding(*net, group, 1, {.max_live_elements = 1});
    EXPECT_TRUE(at::equal(net->parameters()[0], at::arange(64 * 64, at::kFloat).reshape({64, 64})));
    EXPECT_TRUE(at::equal(net->parameters()[1], at::zeros({64})));
    run_backward(*sharding, net->forward(at::ones({2, 64})).square().mean());
    update(*sharding, 0.01);
  });
}

TEST(ZeroInit, InitialisesTheSameValuesAsWithoutIt) {
  torch::manual_seed(3);
  const torch::nn::Linear expected(64, 64);
  ranks(2, [&](Group group) {
    Init init(group, at::kCPU, 1000);
    torch::nn::Linear layer{nullptr};
    // One rank after the other: threads share torch's generator.
    const InitInterceptScope watching(init);
    if (group.rank() == 0) {
      torch::manual_seed(3);
      layer = torch::nn::Linear(64, 64);
      group.barrier();
    } else {
      group.barrier();
      layer = torch::nn::Linear(64, 64);
    }
    init.finish();
    EXPECT_TRUE(at::equal(layer->weight, expected->weight));
  });
}

TEST(ZeroInit, ARankHasItsShardAndAtMostOneTensor) {
  ranks(2, [](Group group) {
    Init init(group, at::kCPU, 4096);
    EXPECT_EQ(built_elements(init, group, 10), 10 * 64 * 64);
    EXPECT_LE(init.max_unsharded_elements(), 64 * 64);
  });
}

TEST(ZeroInit, ComputedParametersAreShardedLikeFilledOnes) {
  ranks(2, [](Group group) {
    Init init(group, at::kCPU, 1000);
    std::vector<at::Tensor> built;
    {
      const InitInterceptScope watching(init);
      for (int i = 0; i < 6; ++i) {
        built.push_back(torch::randn({64, 64}) * 0.02);
        built.back().set_requires_grad(true);
      }
    }
    init.finish();
    EXPECT_LE(init.max_unsharded_elements(), 2 * 64 * 64) << "one, and what it is computed from";
    for (const at::Tensor& tensor : built) {
      EXPECT_TRUE(comm::is_sharded_param(tensor));
      EXPECT_TRUE(tensor.requires_grad());
      const at::Tensor values = tensor.detach().clone();
      EXPECT_TRUE(at::equal(values, group.broadcast(values.clone()).wait())) << "rank 0's";
      EXPECT_LT(values.abs().max().item<double>(), 0.2);
    }
  });
}

TEST(ZeroInit, FullParametersAreShardedAtTheEndUnlessTheyShareMemory) {
  ranks(2, [](Group group) {
    Init init(group, at::kCPU, 1000);
    const at::Tensor weight =
        at::full({64, 64}, static_cast<float>(group.rank() + 3)).set_requires_grad(true);
    const at::Tensor pair = at::ones({64, 64});
    const at::Tensor rows = pair.narrow(0, 0, 32);
    const at::Tensor small = at::ones({8});
    init.shard({weight, pair, rows, small, weight});
    init.finish();
    EXPECT_TRUE(comm::is_sharded_param(weight));
    EXPECT_TRUE(weight.requires_grad());
    EXPECT_TRUE(at::equal(weight, at::full({64, 64}, 3.0F)));
    for (const at::Tensor& tensor : {pair, rows, small}) {
      EXPECT_FALSE(comm::is_sharded_param(tensor));
    }
  });
}

TEST(ActivationCheckpoint, ChangesOnlyTheStoredActivations) {
  Varied plain;
  Varied again;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor ids = (at::arange(24, at::kLong).reshape({4, 6}) * (step + 3)) % 32;
    const at::Tensor plain_loss =
        plain->layer(plain->linear->forward(plain->embedding(ids))).square().mean();
    plain_loss.backward();
    const at::Tensor x = activation_checkpoint(
        [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
          return {again->linear->forward(in[0])};
        },
        {again->embedding(ids)},
        again->linear->parameters())[0];
    const at::Tensor loss = activation_checkpoint(again->layer, x).square().mean();
    loss.backward();
    EXPECT_TRUE(at::equal(plain_loss, loss));
  }
  const auto expected = plain->named_parameters();
  for (const auto& item : again->named_parameters()) {
    const at::Tensor& gradient = expected[item.key()].grad();
    ASSERT_EQ(item.value().grad().defined(), gradient.defined()) << item.key();
    EXPECT_TRUE(!gradient.defined() || at::equal(item.value().grad(), gradient)) << item.key();
  }
}

TEST(ActivationCheckpoint, RepeatsTheRandomNumbersAndKeepsTheGeneratorsState) {
  const auto noisy = [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {torch::dropout(in[0], 0.5, true).square()};
  };
  const at::Tensor x = at::ones({100}).requires_grad_();
  torch::manual_seed(5);
  noisy({x})[0].sum().backward();
  const at::Tensor expected = x.grad().clone();
  x.mutable_grad().reset();
  torch::manual_seed(5);
  const at::Tensor sum = activation_checkpoint(noisy, {x}, {})[0].sum();
  const at::Tensor next = torch::rand({3});
  torch::manual_seed(6);
  sum.backward();
  EXPECT_TRUE(at::equal(x.grad(), expected));
  EXPECT_FALSE(at::equal(next, torch::rand({3})));
  torch::manual_seed(6);
  const at::Tensor undisturbed = torch::rand({3});
  torch::manual_seed(6);
  EXPECT_TRUE(at::equal(undisturbed, torch::rand({3})));
}

TEST(ActivationCheckpoint, WorksWithEveryStage) {
  Varied alone;
  const auto loss_of = [](Varied& net, int step) {
    const at::Tensor ids = (at::arange(24, at::kLong).reshape({4, 6}) * (step + 3)) % 32;
    at::Tensor x = net->embedding(ids);
    x = activation_checkpoint(net->layer, x);
    x = activation_checkpoint(net->layer, x);  // One layer twice.
    return x.square().mean();
  };
  const auto expected = losses_of_one_process(
      *alone, [&](int step) { return loss_of(alone, step); }, 4);
  ranks(2, [&](Group group) {
    Varied net;
    const auto sharding = unshard_sharding(*net, group, 1, {.max_live_elements = 1});
    for (int step = 0; step < 4; ++step) {
      const at::Tensor loss = loss_of(net, step);
      EXPECT_NEAR(loss.item<double>(), expected[step], 2e-6) << step;
      run_backward(*sharding, loss);
      update(*sharding, 0.05);
    }
  });
}

}  // namespace
}  // namespace lockstep::zero
