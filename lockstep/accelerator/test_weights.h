// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/prepare/divided_state.h"

namespace lockstep {

using Weights = std::map<std::string, at::Tensor>;

/// Returns copies of the full parameters of a prepared model, those of all processes together: of
/// divided layers and of experts, and under ZeRO. Collective.
inline Weights weights_of(Accelerator& accelerator, const torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  NamedTensors own;
  for (const auto& item : model.named_parameters()) {
    own.push_back({item.key(), item.value()});
  }
  Weights weights;
  for (const NamedTensor& item : internal::full_model_tensors(
           internal::AcceleratorInternals::objects(accelerator), own, /*keeps=*/true)) {
    weights[item.name] = item.tensor.detach().clone();
  }
  return weights;
}

/// Returns the largest difference of two elements. The names must be the same.
inline double largest_difference(const Weights& got, const Weights& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double largest = 0;
  for (const auto& [name, value] : expected) {
    largest = std::max(largest, (got.at(name) - value).abs().max().item<double>());
  }
  return largest;
}

}  // namespace lockstep
