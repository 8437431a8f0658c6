// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/full.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"

namespace lockstep {

// What the loops of tests train, and on what.

inline torch::nn::Linear two_by_two() {
  torch::nn::Linear net(2, 2);
  torch::NoGradGuard no_grad;
  net->weight.fill_(0.5);
  net->bias.fill_(0.25);
  return net;
}

/// Another one on every rank.
inline at::Tensor rows_of(Accelerator& accelerator) {
  return at::full({3, 2}, accelerator.process_index() + 1.0);
}

inline at::Tensor loss_of(torch::nn::Linear net, const at::Tensor& rows) {
  return net->forward(rows).square().mean();
}

inline bool is_same_on_all(Accelerator& accelerator, const at::Tensor& tensor) {
  const at::Tensor all = accelerator.gather(tensor.detach().reshape({1, -1}));
  return (all == all[0]).all().item<bool>();
}

}  // namespace lockstep
