// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/accelerator/accelerator.h"
#include "tests/nets.h"

namespace lockstep {

// Options, models and data of the tests of ZeRO.

/// Returns options of a stage with small buckets. Stage 0: without ZeRO.
inline AcceleratorOptions stage(int number, int64_t micro_steps = 1) {
  AcceleratorOptions options{.gradient_accumulation_steps = micro_steps};
  if (number > 0) {
    options.zero = ZeroPlugin{.stage = number, .bucket_cap_bytes = 4000};
  }
  return options;
}

/// Returns linear layers of `width` inputs and outputs, with the same weights on every rank.
inline torch::nn::Sequential sine_layers(int64_t layers, int64_t width) {
  return test::sine_layers(layers, width, {.scale = 1.0 / 4});
}

/// Returns a float32 batch [4, 24], another one for each rank and step.
inline at::Tensor sine_batch(int rank, int step) {
  return at::sin(at::arange(4 * 24, at::kFloat) * (1 + rank) + step).reshape({4, 24});
}

/// Returns all parameters as one flat float32 tensor.
inline at::Tensor flat_weights(const torch::nn::Module& net) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : net.parameters()) {
    weights.push_back(parameter.detach().to(at::kFloat).reshape({-1}));
  }
  return at::cat(weights);
}

}  // namespace lockstep
