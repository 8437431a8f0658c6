// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/ring_attention.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/context_parallel/test_attention.h"
#include "lockstep/context_parallel/test_message_transport.h"

namespace lockstep {
namespace {

using context_parallel::AttentionCase;
using context_parallel::AttentionRun;
using context_parallel::counted;
using context_parallel::differences;
using context_parallel::expect_within;
using context_parallel::full_inputs;
using context_parallel::one_process;
using context_parallel::part_of;
using context_parallel::SentBytes;
using ::testing::HasSubstr;

at::Tensor run_ring(
    const AttentionRun& run,
    const Group& group,
    const SequenceShard& shard,
    const AttentionCase& it) {
  return ring_attention(run.query, run.key, run.value, group, shard, it.options);
}

void expect_ring_equals_one_process(const AttentionCase& it, double tolerance) {
  const AttentionRun expected = one_process(it);
  expected.gradients();
  ranks(it.ranks, [&](Group group) {
    const SequenceShard shard(it.length, group, it.layout);
    AttentionRun run = part_of(full_inputs(it), shard);
    run.output = run_ring(run, group, shard, it);
    EXPECT_EQ(run.output.scalar_type(), it.dtype);
    expect_within(differences(run, expected, shard), tolerance, it.text());
  });
}

TEST(RingAttention, EqualsOneProcessForEachLayoutMaskAndNumberOfRanks) {
  for (const int size : {1, 2, 3, 4}) {
    for (const auto layout : {SequenceLayout::kContiguous, SequenceLayout::kZigzag}) {
      for (const bool is_causal : {false, true}) {
        AttentionCase it{.ranks = size, .layout = layout, .options = {.is_causal = is_causal}};
        expect_ring_equals_one_process(it, 1e-12);
        it.dtype = at::kFloat;
        expect_ring_equals_one_process(it, 1e-6);
      }
    }
  }
}

TEST(RingAttention, EqualsOneProcessInSixteenBitDtypes) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool is_causal : {false, true}) {
      expect_ring_equals_one_process(
          {.ranks = 4,
           .layout = SequenceLayout::kZigzag,
           .options = {.is_causal = is_causal},
           .dtype = dtype},
          1e-2);
    }
  }
}

TEST(RingAttention, EqualsOneProcessWithFewerKeyHeadsOtherValueFeaturesAndAScale) {
  for (const auto layout : {SequenceLayout::kContiguous, SequenceLayout::kZigzag}) {
    for (const int64_t key_heads : {2, 1}) {
      for (const int64_t value_features : {8, 5}) {  // 5: by matrix products.
        expect_ring_equals_one_process(
            {.ranks = 3,
             .layout = layout,
             .options = {.is_causal = true, .scale = 0.7, .enable_gqa = true},
             .key_heads = key_heads,
             .value_features = value_features},
            1e-12);
      }
    }
  }
}

TEST(RingAttention, TakesTensorsWithoutABatchAndOtherStrides) {
  const AttentionCase it{.options = {.is_causal = true}};
  const AttentionRun full = full_inputs(it);
  const at::Tensor expected =
      at::scaled_dot_product_attention(full.query, full.key, full.value, {}, 0, true);
  ranks(2, [&](Group group) {
    const SequenceShard shard(it.length, group);
    const auto strided = [&](const at::Tensor& tensor) {
      const at::Tensor part = shard.shard_sequence(tensor, 2)[0];
      return part.transpose(0, 2).contiguous().transpose(0, 2);  // Features are not adjacent.
    };
    const at::Tensor output = ring_attention(
        strided(full.query), strided(full.key), strided(full.value), group, shard, it.options);
    EXPECT_LE(context_parallel::difference(output, shard.shard_sequence(expected, 2)[0]), 1e-12);
  });
}

TEST(RingAttention, RunsOverSharedMemoryAndSockets) {
  using Ranks =
      std::function<void(int, const std::function<void(Group)>&, comm::Milliseconds timeout)>;
  const AttentionCase it{
      .layout = SequenceLayout::kZigzag, .options = {.is_causal = true}, .length = 48};
  const AttentionRun expected = one_process(it);
  expected.gradients();
  for (const Ranks& over : {Ranks(&shm_ranks), Ranks(&gloo_ranks)}) {
    for (const int size : {2, 3}) {
      over(
          size,
          [&](Group group) {
            const SequenceShard shard(it.length, group, it.layout);
            for (int repeat = 0; repeat < 3; ++repeat) {
              AttentionRun run = part_of(full_inputs(it), shard);
              run.output = run_ring(run, group, shard, it);
              expect_within(differences(run, expected, shard), 1e-12, group.transport_name());
            }
          },
          std::chrono::seconds(60));
    }
  }
}

/// Returns the largest differences of any rank if some results of operations are lost.
std::vector<double> differences_without(
    const AttentionCase& it, const context_parallel::MessageTransport::Spoils& spoils) {
  const AttentionRun expected = one_process(it);
  expected.gradients();
  std::vector<double> largest(4, 0);
  std::mutex mutex;
  ranks(it.ranks, [&](const Group& given) {
    const Group group = counted(given, std::make_shared<SentBytes>(), spoils);
    const SequenceShard shard(it.length, group, it.layout);
    AttentionRun run = part_of(full_inputs(it), shard);
    run.output = run_ring(run, group, shard, it);
    const std::vector<double> mine = differences(run, expected, shard);
    const std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < mine.size(); ++i) {
      largest[i] = std::max(largest[i], mine[i]);
    }
  });
  return largest;
}

TEST(RingAttention, DiffersWithoutAnyOfItsMessages) {
  const AttentionCase it{.ranks = 3, .options = {.is_causal = true}};
  // Receives of a rank: 2 of keys forward; backward keys, keys, gradients, gradients.
  for (int call = 0; call < 6; ++call) {
    const auto got = differences_without(
        it, [call](comm::Op op, int now) { return op == comm::Op::kRecv && now == call; });
    const double largest = *std::max_element(got.begin(), got.end());
    EXPECT_GT(largest, 1e-3) << "message " << call;
    EXPECT_EQ(got[0] > 1e-3, call < 2) << "the output, message " << call;
  }
  expect_within(differences_without(it, nullptr), 1e-12, "all messages");
}

TEST(RingAttention, DiffersIfTheLayoutIsNotThatOfTheTensors) {
  const AttentionCase it{.layout = SequenceLayout::kZigzag, .options = {.is_causal = true}};
  const AttentionRun expected = one_process(it);
  ranks(2, [&](Group group) {
    const SequenceShard shard(it.length, group, SequenceLayout::kZigzag);
    const SequenceShard claimed(it.length, group, SequenceLayout::kContiguous);
    const AttentionRun run = part_of(full_inputs(it), shard);
    EXPECT_GT(
        context_parallel::difference(
            run_ring(run, group, claimed, it), shard.shard_sequence(expected.output, 2)),
        0.1);
  });
}

TEST(RingAttention, SendsTheBytesOfTheFormula) {
  for (const int size : {2, 3, 4}) {
    for (const auto dtype : {at::kDouble, at::kBFloat16}) {
      const AttentionCase it{
          .ranks = size,
          .options = {.is_causal = true, .enable_gqa = true},
          .key_heads = 2,
          .dtype = dtype};
      ranks(size, [&](const Group& given) {
        const auto sent = std::make_shared<SentBytes>();
        const Group group = counted(given, sent);
        const SequenceShard shard(it.length, group, it.layout);
        AttentionRun run = part_of(full_inputs(it), shard);
        run.output = run_ring(run, group, shard, it);
        const int64_t elements = (size - 1) * 2 * run.key.numel();
        EXPECT_EQ(sent->of(comm::Op::kSend), elements * run.key.element_size());
        run.gradients();
        const int64_t gradient_bytes = dtype == at::kBFloat16 ? 4 : 8;
        EXPECT_EQ(
            sent->of(comm::Op::kSend), elements * (2 * run.key.element_size() + gradient_bytes));
        EXPECT_EQ(sent->calls(comm::Op::kSend), 3 * (size - 1));
        EXPECT_EQ(sent->calls(comm::Op::kAllGather) + sent->calls(comm::Op::kAllToAll), 0);
      });
    }
  }
}

TEST(RingAttention, ReportsRanksWithOtherArguments) {
  const AttentionCase it{};
  ranks(2, [&](Group group) {
    const SequenceShard shard(it.length, group);
    const AttentionRun run = part_of(full_inputs(it), shard);
    EXPECT_THAT(
        error_of<CommError>([&] {
          ring_attention(
              run.query, run.key, run.value, group, shard, {.is_causal = group.rank() == 1});
        }),
        HasSubstr("the two ranks call different operations"));
  });
}

TEST(RingAttention, RefusesDropoutOtherLengthsAndArgumentsThatDoNotFit) {
  const Group group;
  const SequenceShard shard(4, group);
  const at::Tensor x = at::ones({1, 4, 4, 8});
  const auto error = [&](const at::Tensor& q,
                         const at::Tensor& k,
                         const at::Tensor& v,
                         const AttentionOptions& options = {}) {
    return error_of([&] { ring_attention(q, k, v, group, shard, options); });
  };
  EXPECT_THAT(error(x, x, x, {.dropout_p = 0.1}), HasSubstr("dropout_p of attention is not"));
  EXPECT_THAT(error(x, x, x.to(at::kDouble)), HasSubstr("do not fit together"));
  EXPECT_THAT(
      error(x, at::ones({1, 4, 6, 8}), at::ones({1, 4, 6, 8})),
      HasSubstr("run this attention within a LocalAttentionScope"));
  const at::Tensor two_heads = at::ones({1, 2, 4, 8});
  EXPECT_THAT(error(x, two_heads, two_heads), HasSubstr("the numbers of heads do not fit"));
  EXPECT_EQ(error(x, two_heads, two_heads, {.enable_gqa = true}), "no error");
  EXPECT_THAT(
      error_of([&] { ring_attention(x, x, x, group, SequenceShard(4, 0, 2), {}); }),
      HasSubstr("belongs to another group"));
}

TEST(RingAttention, RefusesGradientsOfGradients) {
  const AttentionCase it{.ranks = 1};
  const Group group;
  AttentionRun run = part_of(full_inputs(it), SequenceShard(it.length, group));
  run.output = run_ring(run, group, SequenceShard(it.length, group), it);
  EXPECT_THAT(
      error_of(
          [&] { run.output.backward(run.output_gradient, std::nullopt, /*create_graph=*/true); }),
      HasSubstr("create_graph"));
}

}  // namespace
}  // namespace lockstep
