// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/sample/collate.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using torch::nn::Linear;

TEST(FreeMemory, ReleasesItsArgumentsAndResetsTheAccelerator) {
  accelerated_ranks(2, {.gradient_accumulation_steps = 2}, [](Accelerator& accelerator) {
    Linear net(2, 1);
    std::weak_ptr<torch::nn::LinearImpl> alive = net.ptr();
    auto optimizer = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
    accelerator.prepare(net);
    {
      auto micro_step = accelerator.accumulate(net);
      accelerator.backward(net->forward(at::ones({1, 2})).sum());
    }
    accelerator.free_memory(net, optimizer);
    EXPECT_TRUE(net.is_empty());
    EXPECT_TRUE(alive.expired());
    EXPECT_TRUE(accelerator.sync_gradients());
    Linear again(2, 1);
    accelerator.prepare(again);
    accelerator.backward(again->forward(at::ones({1, 2})).sum());
    EXPECT_EQ(again->weight.grad()[0][0].item<float>(), 0.5);
  });
}

struct CountedDataset {
  std::shared_ptr<int> alive;
  int64_t size() const { return 8; }
  data::Batch get(int64_t /*index*/) const { return {at::ones({2}), at::ones({1})}; }
};

TEST(FreeMemory, ReleasesTheDataSetOfALoader) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    const auto alive = std::make_shared<int>(0);
    auto loader =
        accelerator.prepare(data::Loader(data::collated(CountedDataset{alive}), {.batch_size = 2}));
    EXPECT_GT(alive.use_count(), 1);
    accelerator.free_memory(loader);
    EXPECT_EQ(alive.use_count(), 1);
    try {
      loader.begin();
      FAIL() << "an empty loader was used";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("free_memory() has released its dataset"));
    }
  });
}

}  // namespace
}  // namespace lockstep
