// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/sparse_gradients.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/data_parallel.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

/// An embedding of 10 rows, and a dense layer.
struct WordNet {
  at::Tensor words = at::linspace(-1, 1, 40).reshape({10, 4}).requires_grad_();
  at::Tensor dense = at::linspace(0, 1, 4).requires_grad_();

  NamedTensors named() const { return {{"words", words}, {"dense", dense}}; }
  at::Tensor loss(const std::vector<int64_t>& indices, bool sparse = true) const {
    const at::Tensor rows = at::embedding(words, at::tensor(indices), -1, false, sparse);
    return (rows * dense).square().sum();
  }
};

/// The rows that each rank uses; rank 1 uses one twice.
std::vector<int64_t> rows_of(int rank) {
  return rank == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2, 7, 7};
}

TEST(SparseGradients, AreTheAverageOfDenseOnesAndStaySparse) {
  for (const int size : {1, 2, 3}) {
    ranks(size, [&](Group group) {
      const WordNet net, reference;
      DataParallel parallel(net.named(), {}, group);
      DataParallel dense(reference.named(), {}, group);
      for (int step = 0; step < 2; ++step) {  // The second adds to the first.
        net.loss(rows_of(group.rank())).backward();
        reference.loss(rows_of(group.rank()), /*sparse=*/false).backward();
      }
      ASSERT_EQ(net.words.grad().layout(), at::kSparse);
      EXPECT_TRUE(at::allclose(net.words.grad().to_dense(), reference.words.grad()));
      EXPECT_TRUE(at::allclose(net.dense.grad(), reference.dense.grad()));
      EXPECT_EQ(net.words.grad().coalesce().indices().size(1), size == 1 ? 2 : 3);
      EXPECT_TRUE(parallel.has_gradients() || size == 1);
    });
  }
}

TEST(SparseGradients, AccumulatedLocallyAreAveragedOnce) {
  ranks(2, [&](Group group) {
    const WordNet net, reference;
    DataParallel parallel(net.named(), {}, group);
    DataParallel dense(reference.named(), {}, group);
    for (const bool sync : {false, true}) {
      parallel.set_sync(sync);
      dense.set_sync(sync);
      net.loss(rows_of(group.rank())).backward();
      reference.loss(rows_of(group.rank()), /*sparse=*/false).backward();
    }
    EXPECT_TRUE(at::allclose(net.words.grad().to_dense(), reference.words.grad()));
  });
}

TEST(SparseGradients, ARankWithoutOneCountsAsZero) {
  ranks(2, [&](Group group) {
    const WordNet net;
    DataParallel parallel(net.named(), {}, group);
    parallel.begin_backward();
    (group.rank() == 0 ? net.loss({3}) : net.dense.sum()).backward();
    parallel.finish_backward();
    const at::Tensor gradient = net.words.grad().to_dense();
    EXPECT_TRUE(at::allclose(gradient[3], net.words[3].detach() * net.dense.detach().square()));
    EXPECT_EQ(gradient[2].abs().sum().item<double>(), 0);
  });
}

TEST(SparseGradients, OnOneRankAndDenseOnAnotherAreRefusedByName) {
  ranks(2, [&](Group group) {
    const WordNet net;
    DataParallel parallel(net.named(), {}, group);
    EXPECT_THAT(
        error_of<ConfigError>([&] { net.loss({3}, group.rank() == 0).backward(); }),
        HasSubstr("words has a sparse gradient on one rank and a dense one on another"));
  });
}

}  // namespace
}  // namespace lockstep
