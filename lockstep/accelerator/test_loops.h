// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sin.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"

namespace lockstep {

// Models, data and checks of the loops in tests.

inline torch::nn::Linear two_by_two() {
  torch::nn::Linear net(2, 2);
  torch::NoGradGuard no_grad;
  net->weight.fill_(0.5);
  net->bias.fill_(0.25);
  return net;
}

inline torch::nn::Linear one_by_one() {
  torch::nn::Linear net(1, 1);
  torch::NoGradGuard no_grad;
  net->weight.fill_(0.5);
  net->bias.fill_(0.25);
  return net;
}

/// `count` samples of one number each: the sample's index.
inline data::Loader<data::TensorDataset> numbers(int64_t count, data::LoaderOptions options) {
  const at::Tensor rows = at::arange(count, at::kFloat).reshape({count, 1});
  return data::Loader(data::TensorDataset(rows, at::arange(count)), options);
}

/// `count` samples of one number each, in batches of two.
inline data::Loader<data::TensorDataset> shuffled_numbers(int64_t count) {
  const at::Tensor rows = at::sin(at::arange(count, at::kFloat)).reshape({count, 1});
  return data::Loader(
      data::TensorDataset(rows, at::arange(count)), {.batch_size = 2, .shuffle = true, .seed = 5});
}

/// Different rows on every rank.
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
