// SPDX-License-Identifier: Apache-2.0
// Lockstep's optimizers with DataParallel compared with torch::optim on the full batch in one
// process.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/thread/ranks.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/sync/data_parallel.h"

namespace lockstep {
namespace {

constexpr int kSteps = 20;

/// Two layers (cloned: views of another tensor would not be moved into flat buffers), and a branch
/// that only some steps use.
struct BranchedModel {
  at::Tensor w1 = at::linspace(-1, 1, 12, at::kDouble).reshape({4, 3}).clone().requires_grad_();
  at::Tensor b1 = at::linspace(0, 1, 3, at::kDouble).requires_grad_();
  at::Tensor w2 = at::linspace(1, -1, 6, at::kDouble).reshape({3, 2}).clone().requires_grad_();
  at::Tensor branch = at::full({2}, 0.5, at::kDouble).requires_grad_();

  NamedTensors named() const { return {{"w1", w1}, {"b1", b1}, {"w2", w2}, {"branch", branch}}; }
  std::vector<at::Tensor> list() const { return {w1, b1, w2, branch}; }
  at::Tensor loss(int rank, int step) const {
    const at::Tensor x = at::sin(at::arange(20, at::kDouble).reshape({5, 4}) + 7 * rank + step);
    at::Tensor y = at::tanh(x.matmul(w1) + b1).matmul(w2);
    if (step % 3 == 0) {
      y = y * branch;
    }
    return y.pow(2).mean();
  }
};

template <typename Theirs, typename TheirOptions>
BranchedModel one_process(int size, TheirOptions options) {
  BranchedModel model;
  Theirs optimizer(model.list(), options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < size; ++rank) {
      (model.loss(rank, step) / size).backward();
    }
    optimizer.step();
  }
  return model;
}

template <typename Ours>
void expect_equal_to(const BranchedModel& expected, int size, typename Ours::Options options) {
  ranks(size, [&](Group group) {
    const BranchedModel model;
    Ours optimizer(model.list(), options);
    DataParallel parallel(model.named(), {}, group);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      model.loss(group.rank(), step).backward();
      optimizer.step();
      if (group.size() > 1 && step == 0) {
        EXPECT_EQ(optimizer.run_count(), parallel.bucket_count());
      }
    }
    for (size_t k = 0; k < 4; ++k) {
      EXPECT_TRUE(at::allclose(model.list()[k], expected.list()[k], 1e-9, 1e-11))
          << "parameter " << k;
    }
  });
}

class DataParallelOptimizer : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Worlds, DataParallelOptimizer, ::testing::Values(1, 2, 3));

TEST_P(DataParallelOptimizer, SgdEqualsTorchsInOneProcess) {
  const auto expected = one_process<torch::optim::SGD>(
      GetParam(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  expect_equal_to<optim::SGD>(
      expected, GetParam(), {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
}

TEST_P(DataParallelOptimizer, AdamwEqualsTorchsInOneProcess) {
  const auto expected =
      one_process<torch::optim::AdamW>(GetParam(), torch::optim::AdamWOptions(0.05));
  expect_equal_to<optim::AdamW>(expected, GetParam(), {.lr = 0.05});
}

}  // namespace
}  // namespace lockstep
