// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/chunk.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::pipeline {

Values::operator const at::Tensor&() const {
  if (tensors.size() != 1) {
    throw ConfigError(
        "pipeline",
        fmt::format(
            "got {} tensors; expected one; take `const Values&` for several", tensors.size()));
  }
  return tensors.front();
}

Chunk::Chunk(std::function<Values(const Values& input)> function, std::vector<at::Tensor> tensors)
    : forward(std::move(function)), parameters(std::move(tensors)) {
  if (!forward) {
    throw ConfigError("pipeline", "a chunk has no function; expected its forward");
  }
}

Chunk::Chunk(const torch::nn::Sequential& layers)
    : Chunk(
          [shared = layers.ptr()](const at::Tensor& input) -> Values {
            return shared->forward(input);
          },
          layers->parameters()) {}

Layers layers_of(const torch::nn::Sequential& model) {
  return {model->begin(), model->end()};
}

std::vector<double> parameter_counts(const Layers& layers) {
  std::vector<double> counts;
  for (const torch::nn::AnyModule& layer : layers) {
    int64_t count = 0;
    for (const at::Tensor& parameter : layer.ptr()->parameters()) {
      count += parameter.numel();
    }
    counts.push_back(static_cast<double>(count));
  }
  return counts;
}

std::vector<std::string> class_names(const Layers& layers) {
  std::vector<std::string> names;
  for (const torch::nn::AnyModule& layer : layers) {
    names.push_back(layer.ptr()->name());
  }
  return names;
}

std::vector<torch::nn::Sequential> chunks_of_rank(
    const Layers& layers, const Bounds& bounds, int rank, int ranks) {
  const size_t chunks = bounds.empty() ? 0 : bounds.size() - 1;
  const auto step = static_cast<size_t>(ranks);
  if (ranks < 1 || rank < 0 || rank >= ranks || chunks == 0 || chunks % step != 0) {
    throw ConfigError(
        "pipeline",
        fmt::format(
            "got {} chunks for rank {} of {}; expected a multiple of the ranks",
            chunks,
            rank,
            ranks));
  }
  if (cut_at({bounds.begin() + 1, bounds.end() - 1}, layers.size(), chunks) != bounds) {
    throw ConfigError(
        "pipeline",
        fmt::format(
            "the chunks have the layers {} to {}; expected 0 to {}",
            bounds.front(),
            bounds.back(),
            layers.size()));
  }
  std::vector<torch::nn::Sequential> own;
  for (auto chunk = static_cast<size_t>(rank); chunk < chunks; chunk += step) {
    torch::nn::Sequential sequential;
    for (size_t layer = bounds[chunk]; layer < bounds[chunk + 1]; ++layer) {
      sequential->push_back(std::to_string(layer), layers[layer]);
    }
    own.push_back(std::move(sequential));
  }
  return own;
}

}  // namespace lockstep::pipeline
