// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/optim/rules/adam.h"
#include "tests/nets.h"

namespace lockstep::test_masters {

// Training of 16-bit parameters with fp32 masters, for tests.

constexpr double kLr = 0.01;
constexpr int kSteps = 4;

inline AcceleratorOptions stage(int64_t number, int64_t micro_steps = 1) {
  AcceleratorOptions options{.gradient_accumulation_steps = micro_steps};
  if (number > 0) {
    options.zero = ZeroPlugin{.stage = number, .bucket_cap_bytes = 1000};
  }
  return options;
}

using Net = test::TwoLayerNet;

inline Net new_net(at::ScalarType dtype) {
  return Net(test::TwoLayerOptions{.scale = 0.5, .dtype = dtype});
}

inline at::Tensor loss_of(Net& net, int rank, int64_t micro_step) {
  const at::Tensor x =
      at::sin(at::arange(4 * 24, at::kFloat) * (1 + rank) + static_cast<double>(micro_step));
  return net->forward(x.reshape({4, 24})).square().mean();
}

inline at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : tensors) {
    all.push_back(tensor.detach().reshape({-1}).clone());
  }
  return at::cat(all);
}

inline optim::AdamW adamw(const std::vector<at::Tensor>& parameters, double lr = kLr) {
  return optim::AdamW(parameters, {.lr = lr, .weight_decay = 0.1});
}

struct Training {
  Training(Accelerator& given, at::ScalarType dtype, double lr = kLr)
      : accelerator(given), net(new_net(dtype)) {
    optimizer = std::get<1>(accelerator.prepare(net, adamw(net->parameters(), lr)));
  }
  /// `same`: every rank has rank 0's batches.
  void train(int64_t from, int64_t to, double max_norm = 0, bool same = false) {
    const int rank = same ? 0 : accelerator.process_index();
    for (int64_t micro_step = from; micro_step < to; ++micro_step) {
      auto scope = accelerator.accumulate(net);
      accelerator.backward(loss_of(net, rank, micro_step));
      if (max_norm > 0) {
        accelerator.clip_grad_norm_(net->parameters(), max_norm);
      }
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  at::Tensor weights() const { return flat(net->parameters()); }
  /// Returns the parameters that this rank updates.
  at::Tensor shard_slices() const { return flat(optimizer.parameters()); }

  Accelerator& accelerator;
  Net net;
  Optimizer optimizer;
};

/// Returns the weights after `body`, which are the same on all ranks.
inline at::Tensor weights_after(
    const AcceleratorOptions& options,
    int world,
    at::ScalarType dtype,
    const std::function<void(Training&)>& body) {
  std::vector<at::Tensor> all(static_cast<size_t>(world));
  accelerated_ranks(world, options, [&](Accelerator& accelerator) {
    Training training(accelerator, dtype);
    body(training);
    all[static_cast<size_t>(accelerator.process_index())] = training.weights();
  });
  for (const at::Tensor& weights : all) {
    EXPECT_TRUE(at::equal(weights, all[0]));
  }
  EXPECT_EQ(all[0].scalar_type(), dtype);
  return all[0];
}

}  // namespace lockstep::test_masters
