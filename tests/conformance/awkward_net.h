// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace conformance {

/// A small network with difficult parameters: one under two names, one frozen, one never used, one
/// that only some samples use, and sizes without small divisors.
struct AwkwardNetImpl : torch::nn::Module {
  AwkwardNetImpl() {
    first = register_module("first", torch::nn::Linear(5, 7));
    second = register_module("second", torch::nn::Linear(7, 7));
    tied = register_parameter("tied", second->weight);
    frozen = register_module("frozen", torch::nn::Linear(7, 7));
    unused = register_module("unused", torch::nn::Linear(3, 11));
    sometimes = register_module("sometimes", torch::nn::Linear(7, 1));
    last = register_module("last", torch::nn::Linear(7, 1));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      const auto values = torch::sin(torch::arange(parameter.numel(), torch::kFloat) + 1) / 2;
      parameter.copy_(values.reshape(parameter.sizes()));
    }
    for (auto& parameter : frozen->parameters()) {
      parameter.set_requires_grad(false);
    }
  }

  /// Samples with a negative first number use `sometimes`. A batch without one leaves it out of the
  /// graph.
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::tanh(first(x));
    h = torch::tanh(second(h)) + torch::matmul(h, tied) / 4 + frozen(h) / 4;
    auto y = last(h);
    const auto negative = (x.select(1, 0) < 0).unsqueeze(1);
    if (negative.any().item<bool>()) {
      y = y + sometimes(h) * negative;
    }
    return y;
  }

  torch::nn::Linear first{nullptr}, second{nullptr}, frozen{nullptr}, unused{nullptr};
  torch::nn::Linear sometimes{nullptr}, last{nullptr};
  torch::Tensor tied;
};
TORCH_MODULE(AwkwardNet);

}  // namespace conformance
