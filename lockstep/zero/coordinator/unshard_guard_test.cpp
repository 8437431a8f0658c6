// SPDX-License-Identifier: Apache-2.0
// Stage 3: what must not be done with parameters that come and go, and is said; and what may be.
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/zero/activation/activation_checkpoint.h"
#include "lockstep/zero/coordinator/init.h"
#include "lockstep/zero/test_counting_transport.h"
#include "lockstep/zero/test_sharding.h"
#include "tests/nets.h"

namespace lockstep::zero {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::shared_ptr<Sharding> guarded_sharding(
    const NamedTensors& parameters,
    const Group& group,
    ParamPlacement placement = ParamPlacement::kSharded,
    const NamedTensors& buffers = {},
    int64_t cap_bytes = 1) {
  return make_sharding(
      parameters,
      group,
      {.cap_bytes = cap_bytes,
       .first_cap_bytes = cap_bytes,
       .placement = placement,
       .coordinator = {.max_live_elements = 1, .prefetch = false}},
      buffers);
}

/// What `build` makes, in parts.
template <typename Build>
auto build_in_parts(Init& init, const Build& build) {
  std::optional<InitInterceptScope> watching(init);
  auto built = build();
  watching.reset();
  init.finish();
  return built;
}

TEST(UnshardGuard, CollectivesOnShardedParametersAreRefused) {
  ranks(2, [](Group group) {
    auto net = test::sine_layers(1, 16);
    const auto sharding = guarded_sharding(named(*net), group);
    const at::Tensor weight = net->parameters()[0].detach();
    const auto refusal = ThrowsMessage<ConfigError>(
        AllOf(HasSubstr("clone()"), HasSubstr("with_gathered_parameters")));
    EXPECT_THAT([&] { group.all_reduce(weight); }, refusal);
    EXPECT_THAT([&] { group.broadcast(weight); }, refusal);
    EXPECT_THAT([&] { group.all_gather(weight); }, refusal);
    EXPECT_THAT([&] { group.all_gather(weight[0]); }, refusal) << "a view of one";
    EXPECT_THAT([&] { group.all_gather_into(weight, at::ones({8, 16})); }, refusal);
    const at::Tensor sum = group.all_reduce(weight.clone()).wait();
    weight.copy_(sum);
    EXPECT_TRUE(at::equal(weight, test::sine_layers(1, 16)->parameters()[0] * 2))
        << "as the error says";
  });
}

TEST(UnshardGuard, AParameterThatGotOtherMemoryIsNamedAtTheUpdate) {
  for (const ParamPlacement placement : {ParamPlacement::kReplicated, ParamPlacement::kSharded}) {
    ranks(2, [&](Group group) {
      auto net = test::sine_layers(3, 16);
      const auto sharding = guarded_sharding(named(*net), group, placement);
      EXPECT_NO_THROW(sharding->check_not_moved());
      net->to(at::kCPU);
      net->to(at::kFloat);
      EXPECT_NO_THROW(sharding->check_not_moved()) << "nothing to do";
      net->parameters()[2].set_data(at::ones({16, 16}));
      EXPECT_THAT(
          [&] { sharding->check_not_moved(); },
          ThrowsMessage<ConfigError>(AllOf(HasSubstr("1.weight"), HasSubstr("before prepare()"))));
    });
  }
}

TEST(UnshardGuard, ParametersThatOutliveTheirShardingThrow) {
  ranks(2, [](Group group) {
    auto net = test::sine_layers(3, 16);
    auto sharding = guarded_sharding(named(*net), group);
    net->parameters()[0].sum();  // Is here now, and others are not.
    sharding.reset();
    for (const at::Tensor& parameter : net->parameters()) {
      EXPECT_THAT([&] { parameter.sum(); }, ThrowsMessage<c10::Error>(HasSubstr("are gone")));
    }
  });
}

TEST(UnshardGuard, OperationsWithoutValuesUnshardNothing) {
  ranks(2, [](Group group) {
    auto net = test::sine_layers(2, 16);
    const auto sharding = guarded_sharding(named(*net), group);
    const at::Tensor weight = net->parameters()[0];
    const int64_t before = sharding->coordinator()->gathers();
    if (group.rank() == 0) {  // Alone: a round would be an error.
      EXPECT_EQ(at::result_type(weight, at::ones({1}, at::kDouble)), at::kDouble);
      EXPECT_TRUE(at::_has_compatible_shallow_copy_type(weight, at::ones({2})));
      EXPECT_EQ(at::_debug_has_internal_overlap(weight), 0);
      EXPECT_EQ(weight.detach().unsqueeze_(0).dim(), 3);
      EXPECT_TRUE(weight.detach().t_().is_same_size(weight));
    }
    EXPECT_EQ(sharding->coordinator()->gathers(), before);
  });
}

at::Tensor sum_through_memory(const at::Tensor& tensor) {
  const auto* values = tensor.const_data_ptr<float>();
  return at::full({}, std::accumulate(values, values + tensor.numel(), 0.0F));
}

TEST(UnshardGuard, ACustomOperationUnshardsItsParameters) {
  torch::Library library(
      torch::Library::DEF, "paging_guard_test", std::nullopt, __FILE__, __LINE__);
  library.def("sum_like(Tensor self) -> Tensor");
  library.impl("sum_like", torch::dispatch(c10::DispatchKey::CPU, &sum_through_memory));
  const auto sum_like = c10::Dispatcher::singleton()
                            .findSchemaOrThrow("paging_guard_test::sum_like", "")
                            .typed<at::Tensor(const at::Tensor&)>();
  ranks(2, [&](Group group) {
    auto net = test::sine_layers(1, 16);
    const float expected = sum_through_memory(net->parameters()[0]).item<float>();
    const auto sharding = guarded_sharding(named(*net), group);
    EXPECT_EQ(sum_like.call(net->parameters()[0].detach()).item<float>(), expected);
  });
}

TEST(UnshardGuard, OneFrozenTensorMayHaveTwoNames) {
  ranks(2, [](Group group) {
    auto net = test::sine_layers(2, 16);
    const at::Tensor frozen = net->parameters()[0].set_requires_grad(false);
    NamedTensors all = named(*net);
    all.push_back({"again", frozen});
    const auto sharding =
        guarded_sharding(all, group, ParamPlacement::kSharded, {}, /*cap_bytes=*/1 << 20);
    EXPECT_TRUE(at::equal(frozen, test::sine_layers(2, 16)->parameters()[0]));
  });
}

TEST(UnshardGuard, ViewsOfEachOtherAreRefusedByName) {
  const auto refusal = [](const std::string& a, const std::string& b) {
    return ThrowsMessage<ConfigError>(AllOf(HasSubstr(a + " and " + b), HasSubstr("clone()")));
  };
  for (const ParamPlacement placement : {ParamPlacement::kReplicated, ParamPlacement::kSharded}) {
    ranks(2, [&](Group group) {
      const at::Tensor one = at::ones({8, 16}).requires_grad_();
      const at::Tensor view = one.detach().view({16, 8}).requires_grad_();
      const at::Tensor column = one.detach().narrow(1, 3, 1);
      EXPECT_THAT(
          [&] {
            guarded_sharding({{"one", one}, {"view", view}}, group, placement);
          },
          refusal("one", "view"));
      EXPECT_THAT(
          [&] {
            guarded_sharding({{"one", one}}, group, placement, {{"column", column}});
          },
          refusal("one", "column"))
          << "a buffer";
      const at::Tensor columns = at::ones({8, 16});
      const at::Tensor left = columns.narrow(1, 0, 8).detach().requires_grad_();
      const at::Tensor right = columns.narrow(1, 8, 8).detach().requires_grad_();
      const at::Tensor middle = columns.narrow(1, 7, 2).detach().requires_grad_();
      EXPECT_THAT(
          [&] {
            guarded_sharding({{"left", left}, {"middle", middle}}, group, placement);
          },
          refusal("left", "middle"));
      const auto sharding = guarded_sharding(
          {{"left", left}, {"right", right}, {"left again", left}}, group, placement);
      EXPECT_TRUE(at::equal(right, at::ones({8, 8}))) << "side by side, and twice the same";
    });
  }
}

TEST(ZeroInit, UnshardedParametersCanBeMadeFull) {
  ranks(2, [](Group group) {
    Init init(group, at::kCPU, 100);
    const at::Tensor built = build_in_parts(init, [&] {
      return torch::full({16, 16}, static_cast<float>(group.rank() + 3));
    });
    const at::Tensor other = at::ones({4});
    ASSERT_TRUE(comm::is_sharded_param(built));
    init.make_full({other, built, built});
    EXPECT_FALSE(comm::is_sharded_param(built));
    EXPECT_TRUE(at::equal(built, at::full({16, 16}, 3.0F))) << "rank 0's";
    EXPECT_TRUE(init.release().empty()) << "nothing is left in parts";
  });
}

TEST(ZeroInit, AUnitInUseByOneRankIsKeptByAll) {
  ranks(2, [](Group group) {
    Init init(group, at::kCPU, 100);
    auto built = build_in_parts(init, [] { return test::sine_layers(2, 16); });
    const at::Tensor kept = group.rank() == 1 ? built->parameters()[2] : at::Tensor();
    built = nullptr;
    EXPECT_EQ(init.release().size(), 1) << "of two";
  });
}

TEST(ZeroInit, GradientsFlowThroughASecondModelToTheShardedOne) {
  const at::Tensor x = at::ones({2, 16}) / 16;
  auto plain_critic = test::sine_layers(4, 16);
  auto plain = test::sine_layers(6, 16);
  plain_critic->forward(plain->forward(x)).sum().backward();
  ranks(2, [&](Group group) {
    Init init(group, at::kCPU, 100);
    auto nets = build_in_parts(
        init, [] { return std::make_pair(test::sine_layers(6, 16), test::sine_layers(4, 16)); });
    const auto sharding = guarded_sharding(named(*nets.first), group);
    for (Init::ReleasedUnit& left : init.release()) {
      sharding->manage(std::move(left.unit), std::move(left.name));
    }
    for (const at::Tensor& parameter : nets.second->parameters()) {
      parameter.set_requires_grad(false);
    }
    for (int step = 0; step < 3; ++step) {
      const at::Tensor loss = nets.second->forward(nets.first->forward(x)).sum();
      sharding->begin_backward();
      loss.backward();
      sharding->finish_backward();
      for (const auto& [unused, shard_slice] : sharding->slices().all()) {
        for (size_t i = 0; i < plain->parameters().size(); ++i) {
          if (shard_slice.parameter.is_same(nets.first->parameters()[i])) {
            EXPECT_TRUE(at::allclose(
                shard_slice.values.grad(),
                plain->parameters()[i].grad().reshape({-1}).narrow(
                    0, shard_slice.begin, shard_slice.values.numel())))
                << i;
          }
        }
      }
      sharding->finish_parameter_use();
      sharding->gather_parameters();
      sharding->drop_gradients();
    }
  });
}

TEST(ZeroInit, ASecondModelMayBeWrittenAfterTheFirstWasSharded) {
  ranks(2, [](Group group) {
    Init init(group, at::kCPU, 100);
    auto nets = build_in_parts(
        init, [] { return std::make_pair(test::sine_layers(1, 16), test::sine_layers(2, 16)); });
    const auto sharding = guarded_sharding(named(*nets.first), group);
    for (Init::ReleasedUnit& left : init.release()) {
      sharding->manage(std::move(left.unit), std::move(left.name));
    }
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : nets.second->parameters()) {
      parameter.fill_(0.5);
    }
    sharding->finish_parameter_use();
    for (const at::Tensor& parameter : nets.second->parameters()) {
      EXPECT_TRUE(at::equal(parameter, at::full_like(parameter, 0.5)));
    }
  });
}

TEST(ZeroInit, SendsTheBytesOfTheModelTwice) {
  constexpr int kRanks = 3;
  HostTraffic traffic(/*ranks_per_host=*/1);
  ranks(kRanks, [&](Group group) {
    group = counted(group, traffic);
    Init init(group, at::kCPU, 1000);
    const auto weights = build_in_parts(init, [] {
      NamedTensors built;
      for (const char* name : {"a", "b", "c"}) {
        at::Tensor weight = torch::empty({36, 64}, at::requires_grad());
        const torch::NoGradGuard no_grad;
        weight.normal_();
        built.push_back({name, weight});
      }
      return built;
    });
    const auto sharding = guarded_sharding(weights, group);
  });
  const int64_t model = 3 * 36 * 64 * 4;
  EXPECT_EQ(traffic.of(comm::Op::kBroadcast, at::kFloat), model * (kRanks - 1));
  EXPECT_EQ(traffic.of(comm::Op::kAllGather, at::kFloat), model * (kRanks - 1));
}

TEST(ActivationCheckpoint, ABackwardForGradientsOfGradientsIsRefused) {
  const at::Tensor weight = at::full({3}, 2.0).requires_grad_();
  const at::Tensor x = at::ones({3}).requires_grad_();
  const auto cube = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {(in[0] * weight).pow(3)};
  };
  const at::Tensor loss = activation_checkpoint(cube, {x}, {weight})[0].sum();
  EXPECT_THAT(
      [&] { torch::autograd::grad({loss}, {x}, {}, /*retain=*/true, /*create_graph=*/true); },
      ThrowsMessage<ConfigError>(HasSubstr("without activation_checkpoint")));
  EXPECT_TRUE(at::equal(torch::autograd::grad({loss}, {x})[0], at::full({3}, 24.0)));
}

TEST(ActivationCheckpoint, NestsWithinAnother) {
  const at::Tensor weight = at::full({3}, 2.0).requires_grad_();
  const auto square = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {(in[0] * weight).square()};
  };
  const at::Tensor loss = activation_checkpoint(
                              [&](const std::vector<at::Tensor>& in) {
                                return activation_checkpoint(square, in, {weight});
                              },
                              {at::ones({3})},
                              {weight})[0]
                              .sum();
  loss.backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full({3}, 4.0)));
}

}  // namespace
}  // namespace lockstep::zero
