// SPDX-License-Identifier: Apache-2.0
// Stage 3 where ranks do not touch the same parameters, or fail.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/_foreach_add.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/zero/test_sharding.h"
#include "tests/nets.h"

namespace lockstep::zero {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Square layers without biases; one bucket each with a cap of 1.
torch::nn::Sequential exchange_layers(int64_t layers, int64_t width = 16) {
  return test::sine_layers(layers, width, {.scale = 1.0 / 4, .phase_step = 1}, /*bias=*/false);
}

std::shared_ptr<Sharding> exchange_sharding(
    torch::nn::Sequential& net,
    const Group& group,
    int64_t cap_bytes,
    ParamCoordinatorOptions coordinator = {},
    bool two_groups = false) {
  std::vector<std::vector<at::Tensor>> groups(two_groups ? 2 : 1);
  size_t place = 0;
  for (const at::Tensor& parameter : net->parameters()) {
    groups[++place % groups.size()].push_back(parameter);
  }
  return make_sharding(
      named(*net),
      group,
      {.cap_bytes = cap_bytes,
       .first_cap_bytes = cap_bytes,
       .placement = ParamPlacement::kSharded,
       .coordinator = coordinator},
      {},
      groups);
}

/// The end of a step, which changes nothing.
void end_step(Sharding& sharding) {
  sharding.finish_parameter_use();
  sharding.gather_parameters();
  sharding.drop_gradients();
}

/// What users do: train, look at things on one rank, evaluate, and talk to each other in between.
TEST(ParamExchange, OneRankMayReadParametersThatOthersDoNotUse) {
  for (const int64_t layers : {4, 7, 9}) {
    for (const int64_t cap : {1, 3000, 9000}) {
      for (const bool two_groups : {false, true}) {
        for (const size_t logged : {0, 2, 3}) {
          SCOPED_TRACE(testing::Message() << layers << " " << cap << " " << two_groups << logged);
          ranks(2, [&](Group group) {
            auto net = exchange_layers(layers);
            const auto sharding = exchange_sharding(net, group, cap, {}, two_groups);
            const at::Tensor x = at::ones({2, 16});
            for (int step = 0; step < 3; ++step) {
              run_backward(*sharding, net->forward(x).square().sum());
              const torch::NoGradGuard no_grad;
              if (group.rank() == 0 && step > 0) {
                net->parameters()[logged].norm();
              }
              const at::Tensor seen = net->forward(x);
              EXPECT_TRUE(at::equal(seen, group.broadcast(seen.clone()).wait()));
              end_step(*sharding);
            }
          });
        }
      }
    }
  }
}

/// As save_model does: one rank touches all, the others help.
TEST(ParamExchange, AGatherDuringTheOthersSyncLeavesAllRanksEqual) {
  for (const int64_t cap : {1, 3000, 9000}) {
    for (const bool two_groups : {false, true}) {
      for (const bool evaluated : {false, true}) {
        ranks(3, [&](Group group) {
          auto net = exchange_layers(8);
          const auto sharding = exchange_sharding(net, group, cap, {}, two_groups);
          const at::Tensor x = at::ones({2, 16});
          for (int epoch = 0; epoch < 2; ++epoch) {
            run_backward(*sharding, net->forward(x).square().sum());
            end_step(*sharding);
            const torch::NoGradGuard no_grad;
            if (evaluated) {
              net->forward(x);
            }
            if (group.rank() == 0) {
              for (const at::Tensor& parameter : net->parameters()) {
                parameter.clone();
              }
            }
            sharding->coordinator()->wait_for_all();
            for (int i = 0; i < 2; ++i) {
              const at::Tensor seen = net->forward(x);
              EXPECT_TRUE(at::equal(seen, group.broadcast(seen.clone()).wait()));
            }
          }
        });
      }
    }
  }
}

/// Rank 0 has the first matrix here, and rank 1 does not, when both write to it.
TEST(ParamExchange, WritesPersistWhileAnotherRankWaits) {
  ranks(2, [](Group group) {
    auto net = exchange_layers(4);
    const auto sharding =
        exchange_sharding(net, group, 1, {.max_live_elements = 520, .prefetch = false});
    auto weights = net->parameters();
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> plain;
    for (const at::Tensor& weight : exchange_layers(4)->parameters()) {
      plain.push_back(weight);
    }
    weights[0].sum();
    weights[1].sum();
    if (group.rank() == 0) {
      weights[0].sum();
    }
    weights[2].sum();
    weights[0].lerp_(weights[3], 0.5);
    plain[0].lerp_(plain[3], 0.5);
    for (const size_t i : {1, 2, 3, 1, 2}) {
      weights[i].sum();
    }
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(at::equal(weights[i], plain[i])) << i << " on rank " << group.rank();
    }
  });
}

/// With as many units as may be live by default, three: to look at three others lets the first go.
TEST(ParamExchange, CollectiveWritesAreEqualThoughOneRankReadOthersBefore) {
  for (const int who : {0, 1}) {
    for (const bool twice : {false, true}) {
      ranks(2, [&](Group group) {
        auto net = exchange_layers(5);
        const auto sharding = exchange_sharding(net, group, 1);
        auto weights = net->parameters();
        const torch::NoGradGuard no_grad;
        const auto look = [&] {
          if (group.rank() == who) {  // As a main process does that logs.
            for (const size_t i : {1, 2, 3}) {
              weights[i].norm();
            }
          }
        };
        const at::Tensor expected = exchange_layers(5)->parameters()[0] * (twice ? 0.25 : 0.5);
        weights[0].sum();
        look();
        weights[0].mul_(0.5);
        if (twice) {
          look();
          weights[0].mul_(0.5);
        }
        EXPECT_TRUE(at::equal(weights[0], expected)) << "at once";
        for (const size_t i : {1, 2, 3, 4}) {
          weights[i].sum();
        }
        EXPECT_TRUE(at::equal(weights[0], expected)) << "and when it has come again";
      });
    }
  }
}

TEST(ParamExchange, WritesOnSomeRanksAreRefusedByNameOnAllRanks) {
  ranks(2, [](Group group) {
    auto net = exchange_layers(3);
    const auto sharding = exchange_sharding(net, group, 1);
    auto weights = net->parameters();
    const torch::NoGradGuard no_grad;
    weights[0].sum();
    weights[1].sum();
    const auto refusal = [](const char* got) {
      return ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("a write to 0.weight on rank 0"), HasSubstr(got), HasSubstr("modifier_rank")));
    };
    EXPECT_THAT(
        [&] {
          if (group.rank() == 0) {
            weights[0].mul_(2);
          } else {
            sharding->finish_parameter_use();
          }
        },
        refusal("rank 1 has already reached the end of backward, an update"));
    EXPECT_THAT(
        [&] { weights[static_cast<size_t>(group.rank())].mul_(2); },
        refusal("rank 1 uses 1.weight"));
    for (const size_t i : {0, 1}) {
      EXPECT_TRUE(at::equal(weights[i], exchange_layers(3)->parameters()[i]))
          << "nothing was written";
    }
  });
}

/// Rank 1 keeps house for others, and does not come to write, however long it is waited for.
TEST(ParamExchange, AWriteWithoutTheOtherRanksTimesOut) {
  ranks(
      2,
      [](Group group) {
        auto net = exchange_layers(2);
        const auto sharding = exchange_sharding(net, group, 1);
        const auto either = [&] {
          const torch::NoGradGuard no_grad;
          if (group.rank() == 0) {
            net->parameters()[0].mul_(2);
          }
          for (;;) {
            sharding->coordinator()->serve();
          }
        };
        EXPECT_THAT(either, ThrowsMessage<ConfigError>(HasSubstr("a write to 0.weight on rank 0")));
      },
      milliseconds(1000));
}

/// What a program may do around its steps, all ranks alike, and what single ranks do besides.
std::vector<at::Tensor> weights_after_mixed_work(
    Group& group, ParamPlacement placement, uint32_t seed) {
  auto net = exchange_layers(6);
  const auto sharding = make_sharding(
      named(*net), group, {.cap_bytes = 1, .first_cap_bytes = 1, .placement = placement});
  auto weights = net->parameters();
  std::mt19937 common(seed);
  std::mt19937 own(seed * 31 + static_cast<uint32_t>(group.rank()));
  const auto look = [&] {
    const torch::NoGradGuard no_grad;
    for (size_t left = own() % 5; left > 0; --left) {
      weights[own() % weights.size()].norm();
    }
  };
  const at::Tensor x = at::ones({2, 16}) * (group.rank() + 1) / 8;
  for (int step = 0; step < 5; ++step) {
    for (size_t left = common() % 4; left > 0; --left) {
      look();
      const torch::NoGradGuard no_grad;
      at::Tensor& weight = weights[common() % weights.size()];
      if (common() % 2 == 0) {
        weight.mul_(0.75);
      } else {
        const std::vector<at::Tensor> two = {weight, weights[common() % weights.size()]};
        at::_foreach_add_(two, 0.01);
      }
    }
    look();
    const at::Tensor loss = net->forward(x).square().mean();
    look();
    run_backward(*sharding, loss);
    look();
    update(*sharding, 0.1);
  }
  std::vector<at::Tensor> values;
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& weight : weights) {
    values.push_back(weight.clone());
  }
  if (sharding->coordinator() != nullptr) {
    sharding->coordinator()->wait_for_all();
  }
  return values;
}

TEST(ParamExchange, ReadsOfSingleRanksDoNotChangeTraining) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    ranks(2, [&](Group group) {
      const auto expected = weights_after_mixed_work(group, ParamPlacement::kReplicated, seed);
      const auto weights = weights_after_mixed_work(group, ParamPlacement::kSharded, seed);
      for (size_t i = 0; i < weights.size(); ++i) {
        EXPECT_TRUE(at::equal(weights[i], expected[i])) << i << " with seed " << seed;
      }
    });
  }
}

TEST(ParamExchange, UnitsInUseByOneRankDoNotChangeTheOthersReshards) {
  ranks(2, [](Group group) {
    auto net = exchange_layers(6);
    const auto sharding = exchange_sharding(net, group, 1, {.max_live_elements = 520});
    const torch::NoGradGuard no_grad;
    const at::Tensor first = exchange_layers(6)->parameters()[0];
    {
      const Gathered held({net->parameters()[0]}, false);
      net->forward(at::ones({2, 16}));
      EXPECT_TRUE(at::equal(net->parameters()[0], first)) << "still here";
    }
    EXPECT_LE(sharding->coordinator()->unsharded_elements(), 520);
    net->forward(at::ones({2, 16}));
    group.barrier();
  });
}

TEST(ParamExchange, GatheredParametersAreNotUpdated) {
  ranks(2, [](Group group) {
    auto net = exchange_layers(2);
    const auto sharding = exchange_sharding(net, group, 1);
    const Gathered held(net->parameters(), false);
    try {
      sharding->finish_parameter_use();
      FAIL() << "held values would be old";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("end with_gathered_parameters before optimizer.step()"));
    }
  });
}

at::Tensor loss_that_throws(torch::nn::Sequential& net, bool throws) {
  at::Tensor x = at::ones({2, 16});
  for (size_t i = 0; i < net->size(); ++i) {
    x = net->children()[i]->as<torch::nn::Linear>()->forward(x);
    if (throws && i == 3) {
      x.register_hook([](const at::Tensor& gradient) -> at::Tensor {
        throw std::runtime_error("no room");
        return gradient;
      });
    }
  }
  return x.sum();
}

TEST(ParamExchange, ABackwardThatFailedOnOneRankDoesNotMixWithTheNext) {
  std::array<std::string, 2> said;
  ranks(2, [&](Group group) {
    auto net = exchange_layers(6);
    const auto sharding = exchange_sharding(net, group, 1);
    const int rank = group.rank();
    try {
      for (int step = 0; step < 3; ++step) {
        try {
          run_backward(*sharding, loss_that_throws(net, rank == 0 && step == 1));
        } catch (const CommError&) {
          throw;
        } catch (const std::runtime_error&) {
          continue;  // As somebody might who thinks that the next batch will do.
        }
        end_step(*sharding);
      }
    } catch (const CommError& error) {
      said[static_cast<size_t>(rank)] = error.what();
    }
  });
  EXPECT_THAT(
      said[0], HasSubstr("rank 0 is at the end of backward 2, rank 1 at the end of backward 1"));
  EXPECT_THAT(
      said[1], HasSubstr("rank 0 is at the end of backward 2, rank 1 at the end of backward 1"));
}

TEST(ParamExchange, FewBucketsAreInFlightIfAnotherRankIsSlow) {
  constexpr int64_t kLayers = 12;
  std::array<std::atomic<int>, 2> arrived{0, 0};
  std::atomic<int> lead = 0;
  ranks(2, [&](Group group) {
    auto net = exchange_layers(kLayers);
    const auto sharding = exchange_sharding(net, group, 1, {.max_live_elements = 1 << 30});
    const size_t rank = static_cast<size_t>(group.rank());
    for (at::Tensor& parameter : net->parameters()) {
      parameter.register_hook([&, rank](const at::Tensor& gradient) {
        if (rank == 1) {
          std::this_thread::sleep_for(milliseconds(5));
        }
        const int ahead = ++arrived[rank] - arrived[1 - rank];
        if (rank == 0) {
          lead = std::max<int>(lead, ahead);
        }
        return gradient;
      });
    }
    const at::Tensor loss = net->forward(at::ones({2, 16})).sum();
    run_backward(*sharding, loss);
  });
  EXPECT_EQ(arrived[0], kLayers);
  EXPECT_LE(lead, 5) << "three under way, one that is computed, one that is waited for";
}

TEST(ParamExchange, AServingRankMayHaveALongerTimeoutThanTraining) {
  ranks(
      2,
      [](Group group) {
        auto net = exchange_layers(4);
        const auto sharding = exchange_sharding(net, group, 1);
        if (group.rank() == 0) {
          std::this_thread::sleep_for(milliseconds(600));  // A slow disk.
          const at::Tensor expected = exchange_layers(4)->parameters()[1].detach().sum();
          EXPECT_TRUE(at::equal(net->parameters()[1].sum().detach(), expected));
        }
        sharding->coordinator()->wait_for_all(0, group.with_timeout(std::chrono::seconds(60)));
        EXPECT_EQ(sharding->coordinator()->gathers(), 1) << "rank 1 takes part in the all-gather";
      },
      milliseconds(300));
}

/// What was on its way to parameters is there, or cannot be read: never half.
TEST(ParamExchange, AMessageInFlightAtTheEndIsNotReadInPart) {
  const auto expected = exchange_layers(6, 256)->parameters();
  const auto body = [&](Group group) {
    auto net = exchange_layers(6, 256);
    auto sharding = exchange_sharding(net, group, 1, {.max_live_elements = 3 * 65536});
    for (int step = 0; step < 3; ++step) {
      run_backward(*sharding, net->forward(at::ones({2, 256})).sum());
      end_step(*sharding);
    }
    {
      const torch::NoGradGuard no_grad;
      net->children()[0]->as<torch::nn::Linear>()->forward(at::ones({2, 256}));
    }
    EXPECT_GT(sharding->coordinator()->prefetches(), 0);
    sharding.reset();
    for (size_t i = 0; i < expected.size(); ++i) {
      try {
        EXPECT_TRUE(at::equal(net->parameters()[i], expected[i])) << i;
      } catch (const std::exception&) {
        // Not here.
      }
    }
  };
  gloo_ranks(2, body);
  shm_ranks(2, body);
}

}  // namespace
}  // namespace lockstep::zero
