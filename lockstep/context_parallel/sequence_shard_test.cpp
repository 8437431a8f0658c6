// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/sequence_shard.h"

#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/context_parallel/ring_block.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> numbers(const at::Tensor& tensor) {
  const auto* first = tensor.const_data_ptr<int64_t>();
  return {first, first + tensor.numel()};
}

TEST(SequenceShard, HasThePositionsOfItsLayout) {
  EXPECT_THAT(numbers(SequenceShard(12, 1, 3).positions()), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(
      numbers(SequenceShard(12, 0, 3, SequenceLayout::kZigzag).positions()),
      ElementsAre(0, 1, 10, 11));
  EXPECT_THAT(
      numbers(SequenceShard(12, 2, 3, SequenceLayout::kZigzag).positions()),
      ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(numbers(SequenceShard(3, 0, 1).positions()), ElementsAre(0, 1, 2));
}

TEST(SequenceShard, RefusesALengthThatRanksCannotDivideAndSaysWhatToPadTo) {
  EXPECT_THAT(
      error_of([] { SequenceShard(10, 0, 4); }),
      HasSubstr("got 10 positions, expected a positive multiple of 4; pad the sequence to 12"));
  EXPECT_THAT(
      error_of([] { SequenceShard(12, 0, 4, SequenceLayout::kZigzag); }),
      HasSubstr("multiple of 8; pad the sequence to 16"));
  EXPECT_THAT(error_of([] { SequenceShard(0, 0, 4); }), HasSubstr("pad the sequence to 4"));
  EXPECT_THAT(error_of([] { SequenceShard(8, 4, 4); }), HasSubstr("got 4 of 4 ranks"));
  EXPECT_EQ(SequenceShard::padded_length(17, 4, SequenceLayout::kZigzag), 24);
}

TEST(SequenceShard, RefusesATensorOfAnotherLengthAndAnotherGroup) {
  const SequenceShard shard(8, 0, 2);
  EXPECT_THAT(
      error_of([&] {
        shard.shard_sequence(at::zeros({3, 7}), 1);
      }),
      HasSubstr("got 7, expected 8"));
  EXPECT_THAT(
      error_of([&] { shard.unshard_sequence(at::zeros({4}), 0, Group()); }),
      HasSubstr("got rank 0 of 2, expected rank 0 of 1"));
}

TEST(SequenceShard, UnshardsToTheFullTensorAndSumsGradientsOfAllRanks) {
  for (const int size : {2, 3, 4}) {
    for (const auto layout : {SequenceLayout::kContiguous, SequenceLayout::kZigzag}) {
      ranks(size, [&](Group group) {
        const SequenceShard shard(24, group, layout);
        const at::Tensor full = at::arange(2 * 24 * 3, at::kDouble).reshape({2, 24, 3});
        const at::Tensor part = shard.shard_sequence(full, 1).clone().requires_grad_();
        const at::Tensor whole = shard.unshard_sequence(part, -2, group);
        EXPECT_TRUE(at::equal(whole.detach(), full));
        (whole * full * (group.rank() + 1)).sum().backward();
        const double factor = size * (size + 1) / 2.0;
        EXPECT_TRUE(at::equal(part.grad(), part.detach() * factor));
      });
    }
  }
}

TEST(SequenceShard, ReordersBetweenRanksAndPositions) {
  const SequenceShard shard(12, 0, 3, SequenceLayout::kZigzag);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < 3; ++rank) {
    parts.push_back(SequenceShard(12, rank, 3, SequenceLayout::kZigzag).positions());
  }
  const at::Tensor in_order = at::cat(parts);
  EXPECT_TRUE(at::equal(shard.to_sequence_order(in_order, 0), at::arange(12, at::kLong)));
  EXPECT_TRUE(at::equal(shard.to_rank_order(at::arange(12, at::kLong), 0), in_order));
}

/// Counts the pairs of query and key that a rank computes in all blocks of the ring.
int64_t pairs_of(const SequenceShard& shard) {
  int64_t pairs = 0;
  for (int source = 0; source < shard.ranks(); ++source) {
    const auto block = context_parallel::ring_block(shard, source, true);
    const int64_t rows = shard.local_length() - block.query_begin;
    pairs += block.is_causal ? rows * (rows + 1) / 2 : rows * block.keys;
  }
  return pairs;
}

TEST(RingBlock, CoversEachCausalPairOnceAndZigzagGivesEqualWork) {
  for (const auto layout : {SequenceLayout::kContiguous, SequenceLayout::kZigzag}) {
    for (const int size : {1, 2, 3, 4}) {
      const int64_t length = 24;
      at::Tensor computed = at::zeros({length, length}, at::kLong);
      std::vector<int64_t> work;
      for (int rank = 0; rank < size; ++rank) {
        const SequenceShard shard(length, rank, size, layout);
        work.push_back(pairs_of(shard));
        for (int source = 0; source < size; ++source) {
          const auto block = context_parallel::ring_block(shard, source, true);
          const at::Tensor rows = shard.positions().slice(0, block.query_begin);
          const at::Tensor keys =
              SequenceShard(length, source, size, layout).positions().slice(0, 0, block.keys);
          const at::Tensor seen = block.is_causal
                                      ? at::ones({rows.numel(), keys.numel()}, at::kLong).tril()
                                      : at::ones({rows.numel(), keys.numel()}, at::kLong);
          computed.index_put_({rows.unsqueeze(1), keys.unsqueeze(0)}, seen, /*accumulate=*/true);
        }
      }
      EXPECT_TRUE(at::equal(computed, at::ones({length, length}, at::kLong).tril())) << size;
      const auto [least, most] = std::minmax_element(work.begin(), work.end());
      EXPECT_EQ(*least == *most, size == 1 || layout == SequenceLayout::kZigzag);
    }
  }
}

}  // namespace
}  // namespace lockstep
