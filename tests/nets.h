// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

/// Small networks for tests. Their weights do not use torch's random generator, which ranks as
/// threads would share.
namespace lockstep::test {

struct Sines {
  double scale = 1;
  double frequency = 1;
  double phase_step = 0;  ///< Added for each parameter, also for the first one.
};

/// Sets element i of each parameter to scale * sin(frequency * i + phase).
inline void fill_with_sines(torch::nn::Module& module, const Sines& sines = {}) {
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : module.parameters()) {
    phase += sines.phase_step;
    const at::Tensor index = at::arange(parameter.numel(), at::kFloat);
    parameter.copy_(
        (at::sin(index * sines.frequency + phase) * sines.scale).reshape(parameter.sizes()));
  }
}

/// Returns linear layers of `width` inputs and outputs each.
inline torch::nn::Sequential square_layers(int64_t layers, int64_t width, bool bias = true) {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < layers; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(bias)));
  }
  return net;
}

/// Returns square_layers() with weights of sines.
inline torch::nn::Sequential sine_layers(
    int64_t layers, int64_t width, const Sines& sines = {}, bool bias = true) {
  torch::nn::Sequential net = square_layers(layers, width, bias);
  fill_with_sines(*net, sines);
  return net;
}

struct TwoLayerOptions {
  int64_t in = 24;
  int64_t hidden = 40;
  int64_t out = 3;
  double scale = 1;
  at::ScalarType dtype = at::kFloat;
};

/// Computes last(tanh(first(x))) in the dtype of the weights.
struct TwoLayerNetImpl : torch::nn::Module {
  explicit TwoLayerNetImpl(const TwoLayerOptions& options = {}) {
    first = register_module("first", torch::nn::Linear(options.in, options.hidden));
    last = register_module("last", torch::nn::Linear(options.hidden, options.out));
    fill_with_sines(*this, {.scale = options.scale});
    to(options.dtype);
  }
  at::Tensor forward(const at::Tensor& x) {
    return last(torch::tanh(first(x.to(first->weight.scalar_type()))));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(TwoLayerNet);

/// Applies each layer of `stack` and a tanh.
inline at::Tensor forward_tanh(torch::nn::Sequential& stack, at::Tensor x) {
  for (auto& layer : *stack) {
    x = at::tanh(layer.forward<at::Tensor>(x));
  }
  return x;
}

/// Square linear layers with a tanh after each.
struct TanhStackImpl : torch::nn::Module {
  TanhStackImpl(int64_t layers, int64_t width, bool bias = true)
      : stack(register_module("stack", square_layers(layers, width, bias))) {
    fill_with_sines(
        *stack, {.scale = 1.5 / std::sqrt(width), .frequency = 12.9898, .phase_step = 1});
  }
  at::Tensor forward(const at::Tensor& x) { return forward_tanh(stack, x); }
  at::Tensor weight(size_t layer) { return stack[layer]->as<torch::nn::Linear>()->weight; }
  at::Tensor bias(size_t layer) { return stack[layer]->as<torch::nn::Linear>()->bias; }
  torch::nn::Sequential stack;
};

}  // namespace lockstep::test
