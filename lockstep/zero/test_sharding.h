// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "lockstep/flat/parameters.h"
#include "lockstep/zero/sharding.h"

// Helpers of the tests of ZeRO: they shard a module, and train it without an optimizer.
namespace lockstep::zero {

inline NamedTensors named(const torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& item : module.named_parameters()) {
    all.push_back({item.key(), item.value()});
  }
  return all;
}

/// All trained parameters are in one optimizer group, unless `groups` is given.
inline std::shared_ptr<Sharding> make_sharding(
    const NamedTensors& parameters,
    const Group& group,
    const ShardingOptions& options,
    const NamedTensors& buffers = {},
    std::vector<std::vector<at::Tensor>> groups = {}) {
  if (groups.empty()) {
    groups.push_back(tensors_of(trainable(parameters)));
  }
  auto sharding = std::make_shared<Sharding>(parameters, buffers, groups, group, options);
  sharding->watch();
  return sharding;
}

inline void run_backward(Sharding& sharding, const at::Tensor& loss) {
  sharding.begin_backward();
  try {
    loss.backward();
  } catch (...) {
    sharding.abandon_backward();
    throw;
  }
  sharding.finish_backward();
}

/// One step of SGD on the shards.
inline void update(Sharding& sharding, double lr) {
  sharding.finish_parameter_use();
  {
    const c10::AutoGradMode no_grad(false);
    for (const auto& group : sharding.shards()) {
      for (const auto& shard : group) {
        for (at::Tensor shard_slice : shard.shard_slices) {
          if (shard_slice.grad().defined()) {
            shard_slice.sub_(shard_slice.grad() * lr);
          }
        }
      }
    }
  }
  sharding.gather_parameters();
  sharding.drop_gradients();
}

}  // namespace lockstep::zero
