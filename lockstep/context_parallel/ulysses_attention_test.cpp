// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/ulysses_attention.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/context_parallel/test_attention.h"
#include "lockstep/context_parallel/test_message_transport.h"

namespace lockstep {
namespace {

using context_parallel::AttentionCase;
using context_parallel::AttentionRun;
using context_parallel::counted;
using context_parallel::difference;
using context_parallel::differences;
using context_parallel::expect_within;
using context_parallel::full_inputs;
using context_parallel::one_process;
using context_parallel::part_of;
using context_parallel::SentBytes;
using ::testing::HasSubstr;

at::Tensor run_ulysses(
    const AttentionRun& run,
    const Group& group,
    const SequenceShard& shard,
    const AttentionCase& it) {
  return ulysses_attention(run.query, run.key, run.value, group, shard, it.options);
}

void expect_ulysses_equals_one_process(const AttentionCase& it, double tolerance) {
  const AttentionRun expected = one_process(it);
  expected.gradients();
  ranks(it.ranks, [&](Group group) {
    const SequenceShard shard(it.length, group, it.layout);
    AttentionRun run = part_of(full_inputs(it), shard);
    run.output = run_ulysses(run, group, shard, it);
    EXPECT_EQ(run.output.scalar_type(), it.dtype);
    expect_within(differences(run, expected, shard), tolerance, it.text());
  });
}

TEST(UlyssesAttention, EqualsOneProcessForEachLayoutMaskAndNumberOfRanks) {
  for (const int size : {1, 2, 3, 4}) {
    for (const auto layout : {SequenceLayout::kContiguous, SequenceLayout::kZigzag}) {
      for (const bool is_causal : {false, true}) {
        AttentionCase it{
            .ranks = size,
            .layout = layout,
            .options = {.is_causal = is_causal},
            .heads = 12,
            .key_heads = 12};
        expect_ulysses_equals_one_process(it, 1e-12);
        it.dtype = at::kFloat;
        expect_ulysses_equals_one_process(it, 1e-6);
        it.dtype = at::kBFloat16;
        expect_ulysses_equals_one_process(it, 1e-2);
      }
    }
  }
}

TEST(UlyssesAttention, RepeatsKeyHeadsThatRanksShare) {
  // 1 and 2 key heads of 2 or 4 ranks: repeated; 6 of 4: 12 after repetition.
  for (const int size : {2, 4}) {
    for (const int64_t key_heads : {1, 2, 4, 6, 12}) {
      expect_ulysses_equals_one_process(
          {.ranks = size,
           .options = {.is_causal = true, .scale = 0.7, .enable_gqa = true},
           .heads = 12,
           .key_heads = key_heads,
           .value_features = 5},
          1e-12);
    }
  }
}

TEST(UlyssesAttention, RefusesHeadsThatRanksCannotDivide) {
  ranks(4, [&](Group group) {
    const SequenceShard shard(8, group);
    const auto error = [&](int64_t heads, int64_t key_heads) {
      const at::Tensor query = at::ones({1, heads, 2, 4});
      const at::Tensor keys = at::ones({1, key_heads, 2, 4});
      return error_of(
          [&] { ulysses_attention(query, keys, keys, group, shard, {.enable_gqa = true}); });
    };
    EXPECT_THAT(
        error(6, 6),
        HasSubstr("6 query heads and 6 key heads cannot be divided over 4 ranks; expected a "
                  "multiple of 12 query heads"));
    EXPECT_THAT(error(6, 3), HasSubstr("use fewer ranks, or AttentionMethod::kRing"));
    EXPECT_EQ(error(12, 3), "no error");
  });
}

TEST(UlyssesAttention, SendsTheBytesOfFourExchangesEachWay) {
  for (const int size : {2, 4}) {
    const AttentionCase it{.ranks = size, .options = {.is_causal = true}};
    ranks(size, [&](const Group& given) {
      const auto sent = std::make_shared<SentBytes>();
      const Group group = counted(given, sent);
      const SequenceShard shard(it.length, group);
      AttentionRun run = part_of(full_inputs(it), shard);
      run.output = run_ulysses(run, group, shard, it);
      const int64_t once = 4 * static_cast<int64_t>(run.query.nbytes()) / size * (size - 1);
      EXPECT_EQ(sent->of(comm::Op::kAllToAll), once);
      EXPECT_EQ(sent->calls(comm::Op::kAllToAll), 4);
      run.gradients();
      EXPECT_EQ(sent->of(comm::Op::kAllToAll), 2 * once);
      EXPECT_EQ(sent->calls(comm::Op::kAllToAll), 8);
      EXPECT_EQ(sent->calls(comm::Op::kSend), 0);
    });
  }
}

TEST(UlyssesAttention, DiffersWithoutAnyOfItsExchanges) {
  const AttentionCase it{.options = {.is_causal = true}};
  const AttentionRun expected = one_process(it);
  expected.gradients();
  for (int call = 0; call < 8; ++call) {
    ranks(2, [&](const Group& given) {
      const Group group =
          counted(given, std::make_shared<SentBytes>(), [call](comm::Op op, int now) {
            return op == comm::Op::kAllToAll && now == call;
          });
      const SequenceShard shard(it.length, group);
      AttentionRun run = part_of(full_inputs(it), shard);
      run.output = run_ulysses(run, group, shard, it);
      const auto got = differences(run, expected, shard);
      EXPECT_GT(*std::max_element(got.begin(), got.end()), 1e-3) << call;
    });
  }
}

TEST(UlyssesAttention, DiffersIfTheLayoutIsNotThatOfTheTensors) {
  const AttentionCase it{.layout = SequenceLayout::kZigzag, .options = {.is_causal = true}};
  const AttentionRun expected = one_process(it);
  ranks(2, [&](Group group) {
    const SequenceShard shard(it.length, group, SequenceLayout::kZigzag);
    const SequenceShard claimed(it.length, group, SequenceLayout::kContiguous);
    const AttentionRun run = part_of(full_inputs(it), shard);
    EXPECT_GT(
        difference(run_ulysses(run, group, claimed, it), shard.shard_sequence(expected.output, 2)),
        0.1);
  });
}

TEST(UlyssesAttention, DropsWeightsOfFullRowsAndKeepsTheirMean) {
  // Equal scores and values of 1: an output is the kept share of a row's weights, divided by 1 - p.
  constexpr int64_t kRows = 1024;
  constexpr double kDropped = 0.25;
  ranks(2, [&](Group group) {
    const SequenceShard shard(kRows, group);
    const at::Tensor zeros = at::zeros({1, 2, kRows / 2, 4}, at::kDouble);
    const at::Tensor output = ulysses_attention(
        zeros, zeros, at::ones_like(zeros), group, shard, {.dropout_p = kDropped});
    EXPECT_NEAR(output.mean().item<double>(), 1, 0.02);
    EXPECT_GT(output.std().item<double>(), 1e-3);
  });
}

TEST(UlyssesAttention, RefusesGradientsOfGradients) {
  const AttentionCase it{.ranks = 1};
  const Group group;
  AttentionRun run = part_of(full_inputs(it), SequenceShard(it.length, group));
  run.output = run_ulysses(run, group, SequenceShard(it.length, group), it);
  EXPECT_THAT(
      error_of(
          [&] { run.output.backward(run.output_gradient, std::nullopt, /*create_graph=*/true); }),
      HasSubstr("create_graph"));
}

}  // namespace
}  // namespace lockstep
