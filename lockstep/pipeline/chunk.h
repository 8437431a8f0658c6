// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/pipeline/cut.h"

namespace lockstep::pipeline {

/// The layers of a model, in their order. Each takes one tensor and returns one.
using Layers = std::vector<torch::nn::AnyModule>;

/// A part of a model: a function of one tensor, and the parameters whose gradients it computes.
///
/// `forward` must not change its input in place: autograd refuses this for an input that requires a
/// gradient. A tuple between chunks is not supported.
struct Chunk {
  std::function<at::Tensor(const at::Tensor& input)> forward;
  std::vector<at::Tensor> parameters;

  Chunk(
      std::function<at::Tensor(const at::Tensor& input)> function, std::vector<at::Tensor> tensors);
  /// Makes a chunk of layers. It shares `layers`, so `layers->eval()` and `to()` affect it.
  explicit Chunk(const torch::nn::Sequential& layers);
};

/// Returns the layers of a Sequential, which share their parameters with it.
Layers layers_of(const torch::nn::Sequential& model);

/// Returns the number of elements in each layer's parameters: the costs of DeepSpeed's
/// "parameters".
std::vector<double> parameter_counts(const Layers& layers);

/// Returns the name of each layer's class, such as "torch::nn::LinearImpl".
std::vector<std::string> class_names(const Layers& layers);

/// Returns one Sequential for each chunk of this rank, in the order of the model. Chunk c is on
/// rank c % `ranks`. A layer keeps its number as its name, so the parameters have the names that
/// they have in a Sequential of all layers: "3.weight". Throws ConfigError if the ranks do not
/// divide the chunks, and for `bounds` that do not fit the layers.
std::vector<torch::nn::Sequential> chunks_of_rank(
    const Layers& layers, const Bounds& bounds, int rank, int ranks);

}  // namespace lockstep::pipeline
