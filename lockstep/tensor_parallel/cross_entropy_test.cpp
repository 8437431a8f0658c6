// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor_parallel/cross_entropy.h"

#include <gmock/gmock.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 6;
constexpr int64_t kWords = 12;

at::Tensor full_scores(at::ScalarType dtype) {
  return at::mul(at::sin(at::arange(kRows * kWords, at::kDouble)), 40)
      .view({kRows, kWords})
      .to(dtype);
}

at::Tensor targets() {
  return at::tensor({0, 11, 5, -100, 6, 3}, at::kLong);
}

TEST(VocabularyParallelCrossEntropy, EqualsThatOfFullScores) {
  for (const auto& [dtype, tolerance] :
       {std::pair(at::kDouble, 1e-13),
        std::pair(at::kFloat, 1e-5),
        std::pair(at::kBFloat16, 2e-2)}) {
    at::Tensor full = full_scores(dtype).requires_grad_();
    const at::Tensor expected = at::cross_entropy_loss(full, targets());
    (expected * 3).backward();
    for (const int world : {1, 2, 4}) {
      ranks(world, [&, dtype = dtype, tolerance = tolerance](const Group& group) {
        const int64_t words = kWords / world;
        const at::Tensor own =
            full_scores(dtype).narrow(1, words * group.rank(), words).clone().requires_grad_();
        const at::Tensor loss = vocabulary_parallel_cross_entropy(own, targets(), group);
        (loss * 3).backward();
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), tolerance * 100);
        const at::Tensor difference =
            own.grad() - full.grad().narrow(1, words * group.rank(), words);
        EXPECT_LE(difference.abs().max().item<double>(), tolerance);
      });
    }
  }
}

TEST(VocabularyParallelCrossEntropy, WrongArgumentsAreErrors) {
  ranks(2, [](const Group& group) {
    const at::Tensor scores = at::ones({kRows, kWords / 2});
    EXPECT_THROW(
        vocabulary_parallel_cross_entropy(scores, at::full({kRows}, kWords, at::kLong), group),
        ConfigError);
    EXPECT_THROW(
        vocabulary_parallel_cross_entropy(scores.unsqueeze(0), targets(), group), ConfigError);
    EXPECT_THROW(
        vocabulary_parallel_cross_entropy(scores, targets().to(at::kInt), group), ConfigError);
  });
}

}  // namespace
}  // namespace lockstep
