// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/pipeline/cut.h"

namespace lockstep::pipeline {

/// The layers of a model, in their order. Each takes one tensor and returns one.
using Layers = std::vector<torch::nn::AnyModule>;

/// Holds the tensors that a chunk passes to the next one. Converts from a tensor and to one.
struct Values {
  Values() = default;
  Values(at::Tensor tensor)  // NOLINT(google-explicit-constructor)
      : tensors({std::move(tensor)}) {}
  Values(std::vector<at::Tensor> several)  // NOLINT(google-explicit-constructor)
      : tensors(std::move(several)) {}

  /// Returns the only tensor. Throws ConfigError unless there is one.
  operator const at::Tensor&() const;  // NOLINT(google-explicit-constructor)

  std::vector<at::Tensor> tensors;  ///< A gradient that does not exist is undefined.
};

/// A part of a model: a function, and the parameters whose gradients it computes. A function of a
/// tensor that returns one is also a function of Values.
///
/// `forward` may change an input in place that comes from another rank; of a chunk on the same rank
/// autograd refuses it. Of several tensors that it returns, those that require a gradient get one.
struct Chunk {
  std::function<Values(const Values& input)> forward;
  std::vector<at::Tensor> parameters;

  Chunk(std::function<Values(const Values& input)> function, std::vector<at::Tensor> tensors);
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
