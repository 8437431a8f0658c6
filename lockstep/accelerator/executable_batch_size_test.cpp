// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/executable_batch_size.h"

#include <new>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::nn::Linear;

TEST(ExecutableBatchSize, ShrinksUntilItFitsAndRemembers) {
  std::vector<int64_t> tried;
  auto train = find_executable_batch_size(
      [&](int64_t batch_size, int factor) {
        tried.push_back(batch_size);
        if (batch_size > 80) {
          throw std::bad_alloc();
        }
        return batch_size * factor;
      },
      100);
  EXPECT_EQ(train(2), 144);
  EXPECT_THAT(tried, ElementsAre(100, 90, 81, 72));
  EXPECT_EQ(train.batch_size(), 72);
  tried.clear();
  train(1);
  EXPECT_THAT(tried, ElementsAre(72));
}

TEST(ExecutableBatchSize, KnowsTheHostAllocatorsErrorAndNoOther) {
  auto allocate = find_executable_batch_size(
      [](int64_t batch_size) { return at::empty({batch_size > 1 ? int64_t{1} << 50 : 1}).numel(); },
      4,
      [](int64_t size) { return size / 2; });
  EXPECT_EQ(allocate(), 1);
  auto broken = find_executable_batch_size([](int64_t) -> int { throw Error("a", "bug"); });
  EXPECT_THROW(broken(), Error);
  auto hopeless = find_executable_batch_size([](int64_t) -> int { throw std::bad_alloc(); }, 3);
  try {
    hopeless();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no executable batch size"));
  }
}

TEST(ExecutableBatchSize, TakesTheAcceleratorOfOneProcess) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  Linear net(1, 1);
  auto train = find_executable_batch_size(
      accelerator,
      [&](int64_t batch_size) {
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
        accelerator.backward(net->forward(at::ones({1, 1})).sum());
        if (batch_size > 8) {
          throw std::bad_alloc();
        }
        return batch_size;
      },
      10);
  EXPECT_EQ(train(), 8);
  EXPECT_EQ(train.batch_size(), 8);
}

TEST(ExecutableBatchSize, NeedsAConnectionOfTheAcceleratorsOwn) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    auto train = find_executable_batch_size(accelerator, [](int64_t) {});
    EXPECT_THAT(
        [&] { train(); },
        ::testing::ThrowsMessage<ConfigError>(HasSubstr("construct it without a group")));
  });
}

TEST(ExecutableBatchSize, ARetryWithFp16BeginsWithACleanScaler) {
  Accelerator accelerator(
      {.mixed_precision = Precision::kFP16, .grad_scaler = {.init_scale = 4}},
      WorldSpec{},
      Group());
  std::optional<torch::optim::SGD> kept;  // Both attempts' optimizers lie at one address.
  auto train = find_executable_batch_size(
      [&](int64_t batch_size) {
        accelerator.free_memory();
        Linear net(1, 1);
        torch::nn::init::zeros_(net->weight);
        kept.emplace(net->parameters(), 1.0);
        auto [model, optimizer] = accelerator.prepare(net, *kept);
        accelerator.backward(model->forward(at::ones({1, 1})).sum());
        accelerator.clip_grad_norm_(model->parameters(), 100);
        if (batch_size > 3) {
          throw std::bad_alloc();
        }
        optimizer.step();
        return model->weight.item<float>();
      },
      4);
  EXPECT_EQ(train(), -1);
}

}  // namespace
}  // namespace lockstep
