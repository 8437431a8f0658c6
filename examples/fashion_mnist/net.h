// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace examples {

/// Classifies 28 x 28 grey pictures by two convolutions and two linear layers. It is a plain
/// torch::nn module, without Lockstep. Shapes: x is (B, 1, 28, 28), the result, 10 class scores, is
/// (B, 10).
struct NetImpl : torch::nn::Module {
  NetImpl()
      : conv1(register_module(
            "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)))),
        conv2(register_module(
            "conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)))),
        fc1(register_module("fc1", torch::nn::Linear(32 * 7 * 7, 128))),
        fc2(register_module("fc2", torch::nn::Linear(128, 10))) {}

  at::Tensor forward(at::Tensor x) {
    namespace functional = torch::nn::functional;
    const auto halve = functional::MaxPool2dFuncOptions(2);
    x = functional::max_pool2d(torch::relu(conv1(x)), halve);  // (B, 16, 14, 14)
    x = functional::max_pool2d(torch::relu(conv2(x)), halve);  // (B, 32, 7, 7)
    return fc2(torch::relu(fc1(x.flatten(1))));
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Net);

}  // namespace examples
