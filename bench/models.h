// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "examples/char_lm/model.h"

// Defines the models of the benches; the same as in models.py.
namespace bench {

/// Returns 50 million parameters with little computation each, to measure updates and
/// communication.
inline torch::nn::Sequential wide() {
  torch::nn::Sequential net;
  for (int layer = 0; layer < 12; ++layer) {
    net->push_back(torch::nn::Linear(2048, 2048));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

inline torch::nn::Sequential mlp() {
  return torch::nn::Sequential(
      torch::nn::Linear(784, 256), torch::nn::ReLU(), torch::nn::Linear(256, 10));
}

/// Returns a transformer of 10 million parameters.
inline examples::CharModel transformer() {
  return examples::CharModel(examples::ModelOptions{
      .vocabulary = 256, .context = 128, .layers = 12, .heads = 8, .width = 256, .dropout = 0});
}

/// Returns GPT-2 small: 124 million parameters.
inline examples::CharModel gpt2() {
  return examples::CharModel(examples::ModelOptions{
      .vocabulary = 50304, .context = 1024, .layers = 12, .heads = 12, .width = 768, .dropout = 0});
}

}  // namespace bench
