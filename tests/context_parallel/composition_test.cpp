// SPDX-License-Identifier: Apache-2.0
// A ContextParallelScope together with activation checkpointing, autocast, and ZeRO stage 3.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/context_parallel/context_parallel_scope.h"
#include "lockstep/context_parallel/test_attention.h"
#include "lockstep/context_parallel/test_language_model.h"
#include "lockstep/context_parallel/test_message_transport.h"
#include "lockstep/precision/autocast.h"
#include "lockstep/zero/activation/activation_checkpoint.h"
#include "lockstep/zero/test_sharding.h"

namespace lockstep {
namespace {

using context_parallel::counted;
using context_parallel::difference;
using context_parallel::LanguageModel;
using context_parallel::loss_of;
using context_parallel::SentBytes;
using context_parallel::TokenBatch;

constexpr int64_t kLength = 24;
constexpr int kRanks = 2;

/// Computes the model with each block under activation checkpointing.
at::Tensor checkpointed(
    LanguageModel& model, const at::Tensor& tokens, const at::Tensor& positions) {
  at::Tensor x = model->words(tokens) + model->places(positions);
  for (const auto& child : *model->blocks) {
    const auto block = std::dynamic_pointer_cast<context_parallel::BlockImpl>(child);
    x = activation_checkpoint(
        [block](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
          return {block->forward(in[0])};
        },
        {x},
        block->parameters())[0];
  }
  return model->head(x);
}

struct ModelRun {
  bool is_checkpointed = false;
  bool is_autocast = false;
  AttentionMethod method = AttentionMethod::kRing;
  bool backward_is_inside = false;
};

at::Tensor forward_of(
    LanguageModel& model,
    const TokenBatch& batch,
    const at::Tensor& positions,
    const ModelRun& run) {
  std::optional<Autocast> autocast;
  if (run.is_autocast) {
    autocast.emplace(at::kCPU, at::kBFloat16);
  }
  return run.is_checkpointed ? checkpointed(model, batch.tokens, positions)
                             : model(batch.tokens, positions);
}

std::vector<at::Tensor> gradients_of(const LanguageModel& model) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model->parameters()) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

/// Returns loss and gradients of one process.
std::vector<at::Tensor> alone(at::ScalarType dtype, const ModelRun& run) {
  LanguageModel model(kLength, dtype);
  const TokenBatch batch = TokenBatch::make(2, kLength);
  const at::Tensor logits = forward_of(model, batch, at::arange(kLength, at::kLong), run);
  const at::Tensor loss = loss_of(logits.to(dtype), batch.labels, batch.count());
  loss.backward();
  std::vector<at::Tensor> result = gradients_of(model);
  result.push_back(loss.detach());
  return result;
}

/// Does the same with the sequence divided over ranks; sums over ranks.
std::vector<at::Tensor> divided(Group group, at::ScalarType dtype, const ModelRun& run) {
  LanguageModel model(kLength, dtype);
  const TokenBatch full = TokenBatch::make(2, kLength);
  const SequenceShard shard(kLength, group, SequenceLayout::kZigzag);
  const TokenBatch part = full.part_of(shard);
  std::optional<ContextParallelScope> scope;
  scope.emplace(group, shard, run.method);
  const at::Tensor logits = forward_of(model, part, shard.positions(), run);
  const at::Tensor loss = loss_of(logits.to(dtype), part.labels, full.count());
  if (!run.backward_is_inside) {
    scope.reset();
  }
  loss.backward();
  if (scope) {
    EXPECT_EQ(scope->attention_calls(), run.is_checkpointed ? 4 : 2);
  }
  std::vector<at::Tensor> result;
  for (const at::Tensor& gradient : gradients_of(model)) {
    result.push_back(group.all_reduce(gradient.clone()).wait());
  }
  result.push_back(group.all_reduce(loss.detach().clone()).wait());
  return result;
}

double largest_difference(
    const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, difference(got[i], expected[i]));
  }
  return largest;
}

TEST(ContextParallelComposition, ActivationCheckpointsRecomputeWithinTheScopeOfTheirForward) {
  const std::vector<at::Tensor> expected = alone(at::kDouble, {});
  for (const auto method : {AttentionMethod::kRing, AttentionMethod::kUlysses}) {
    for (const bool inside : {false, true}) {
      ranks(kRanks, [&](const Group& group) {
        const ModelRun run{.is_checkpointed = true, .method = method, .backward_is_inside = inside};
        EXPECT_LE(largest_difference(divided(group, at::kDouble, run), expected), 1e-12);
      });
    }
  }
}

TEST(ContextParallelComposition, ARecomputationOutsideOfTheScopeSendsKeysAgain) {
  ranks(kRanks, [](const Group& given) {
    const auto sent = std::make_shared<SentBytes>();
    divided(counted(given, sent), at::kDouble, {.is_checkpointed = true});
    // A block sends its keys in forward, in the second forward, and in backward with gradients.
    EXPECT_EQ(sent->calls(comm::Op::kSend), 2 * 4);
  });
}

TEST(ContextParallelComposition, AutocastWithAndWithoutCheckpointsAgreesWithOneProcess) {
  const std::vector<at::Tensor> expected = alone(at::kFloat, {.is_autocast = true});
  const std::vector<at::Tensor> exact = alone(at::kFloat, {});
  EXPECT_GT(largest_difference(expected, exact), 1e-4);
  for (const bool is_checkpointed : {false, true}) {
    ranks(kRanks, [&](const Group& group) {
      const auto got =
          divided(group, at::kFloat, {.is_checkpointed = is_checkpointed, .is_autocast = true});
      EXPECT_LE(largest_difference(got, expected), 1e-2);
    });
  }
}

TEST(ContextParallelComposition, TrainsShardedParametersOfStage3AsOneProcessDoes) {
  constexpr double kRate = 0.02;
  constexpr int kSteps = 3;
  const TokenBatch full = TokenBatch::make(2, kLength);
  std::vector<double> expected;
  LanguageModel model_alone(kLength, at::kDouble);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = loss_of(
        model_alone(full.tokens, at::arange(kLength, at::kLong)), full.labels, full.count());
    model_alone->zero_grad();
    loss.backward();
    expected.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model_alone->parameters()) {
      parameter.sub_(parameter.grad() * kRate);
    }
  }
  EXPECT_GT(expected.front() - expected.back(), 1e-3);
  for (const bool is_checkpointed : {false, true}) {
    for (const auto method : {AttentionMethod::kRing, AttentionMethod::kUlysses}) {
      ranks(kRanks, [&](Group group) {
        LanguageModel model(kLength, at::kDouble);
        const auto sharding = zero::make_sharding(
            zero::named(*model),
            group.split(0, group.rank()),
            {.cap_bytes = 4096,
             .first_cap_bytes = 4096,
             .placement = zero::ParamPlacement::kSharded,
             .model_communicates = true});
        ASSERT_TRUE(comm::is_sharded_param(model->head->weight));
        const SequenceShard shard(kLength, group, SequenceLayout::kZigzag);
        const TokenBatch part = full.part_of(shard);
        for (int step = 0; step < kSteps; ++step) {
          at::Tensor loss;
          {
            ContextParallelScope scope(group, shard, method);
            const at::Tensor logits =
                forward_of(model, part, shard.positions(), {.is_checkpointed = is_checkpointed});
            // Averaged over ranks, so each rank's loss counts once per rank.
            loss = loss_of(logits, part.labels, full.count()) * kRanks;
            scope.finish();
          }
          const at::Tensor sum = group.all_reduce(loss.detach().clone(), ReduceOp::kAvg).wait();
          EXPECT_NEAR(sum.item<double>(), expected[static_cast<size_t>(step)], 1e-12);
          zero::run_backward(*sharding, loss);
          zero::update(*sharding, kRate);
        }
      });
    }
  }
}

TEST(ContextParallelComposition, AParameterOfStage3CanBeAnAttentionsQuery) {
  ranks(kRanks, [](Group group) {
    struct Net : torch::nn::Module {
      at::Tensor query =
          register_parameter("query", context_parallel::sines({1, 4, kLength / kRanks, 8}, 0.2));
    };
    Net net;
    const at::Tensor query = net.query.detach().clone();
    const auto sharding = zero::make_sharding(
        zero::named(net),
        group.split(0, group.rank()),
        {.placement = zero::ParamPlacement::kSharded, .model_communicates = true});
    ASSERT_TRUE(comm::is_sharded_param(net.query));
    const SequenceShard shard(kLength, group);
    const at::Tensor keys =
        shard.shard_sequence(context_parallel::sines({1, 4, kLength, 8}, 0.7), 2);
    const ContextParallelScope scope(group, shard, AttentionMethod::kRing);
    const at::Tensor expected = at::scaled_dot_product_attention(query, keys, keys);
    const at::Tensor output = at::scaled_dot_product_attention(net.query, keys, keys);
    EXPECT_TRUE(at::equal(output.detach(), expected));
    zero::run_backward(*sharding, output.sum());
    sharding->drop_gradients();
  });
}

}  // namespace
}  // namespace lockstep
