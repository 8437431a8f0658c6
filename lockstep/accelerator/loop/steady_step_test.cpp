// SPDX-License-Identifier: Apache-2.0
// What a step allocates once training is under way: not a tensor more than without Lockstep.
#include <cstdint>

#include <gtest/gtest.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep {
namespace {

// A rank is a thread here, and autograd on the CPU runs on its caller's.
thread_local int64_t g_allocations = 0;

/// libtorch's own, counting.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ++g_allocations;
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

class SteadyStep : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&counting_, /*priority=*/100);
  }
  void TearDown() override { c10::SetCPUAllocator(before_, /*priority=*/100); }

 private:
  CountingAllocator counting_;
  c10::Allocator* before_ = nullptr;
};

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(
      torch::nn::Linear(20, 30), torch::nn::ReLU(), torch::nn::Linear(30, 4));
}

constexpr int kWarmUp = 3;
constexpr int kMeasuredSteps = 5;

template <typename Step>
int64_t allocations_of(const Step& step) {
  for (int i = 0; i < kWarmUp; ++i) {
    step();
  }
  const int64_t before = g_allocations;
  for (int i = 0; i < kMeasuredSteps; ++i) {
    step();
  }
  return g_allocations - before;
}

int64_t allocations_alone(const at::Tensor& batch, int64_t micro_steps) {
  torch::nn::Sequential net = make_net();
  optim::AdamW optimizer(net->parameters(), {.lr = 0.01});
  return allocations_of([&] {
    for (int64_t i = 0; i < micro_steps; ++i) {
      net->forward(batch).sum().backward();
    }
    optimizer.step();
    optimizer.zero_grad();
  });
}

/// `extra`: allowed in each step.
void expect_no_more_than_alone(const AcceleratorOptions& options, int64_t extra = 0) {
  const at::Tensor batch = at::ones({8, 20});
  const int64_t micro_steps = options.gradient_accumulation_steps;
  const int64_t alone = allocations_alone(batch, micro_steps);
  EXPECT_GT(alone, 0) << "autograd's own";
  shm_ranks(2, [&](Group group) {
    WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = group.size();
    Accelerator accelerator(options, world, std::move(group));
    torch::nn::Sequential net = make_net();
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
    const int64_t ours = allocations_of([&] {
      for (int64_t i = 0; i < micro_steps; ++i) {
        auto micro_step = accelerator.accumulate(model);
        accelerator.backward(model->forward(batch).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    EXPECT_LE(ours, alone + extra * kMeasuredSteps);
  });
}

TEST_F(SteadyStep, AllocatesNoTensorMoreThanAlone) {
  expect_no_more_than_alone({});
}

TEST_F(SteadyStep, WithSharedParametersAllocatesNoTensorMoreThanAlone) {
  expect_no_more_than_alone({.shared_parameters = true});
}

TEST_F(SteadyStep, AccumulatingCostsTwoNumbersAMicroStep) {
  // The scaled loss, and its gradient.
  expect_no_more_than_alone({.gradient_accumulation_steps = 3}, 3 * 2);
}

}  // namespace
}  // namespace lockstep
