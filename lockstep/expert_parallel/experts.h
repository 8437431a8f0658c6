// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace lockstep::nn {

/// Mixtral's expert: w2(silu(w1(x)) * w3(x)), without biases. Maps [..., hidden] to [..., hidden].
/// Parameters: w1.weight and w3.weight [intermediate, hidden], w2.weight [hidden, intermediate], as
/// in Mixtral's checkpoints. Initialized as torch::nn::Linear.
class SwiGLUImpl : public torch::nn::Cloneable<SwiGLUImpl> {
 public:
  SwiGLUImpl(int64_t hidden_size, int64_t intermediate_size);
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

  torch::nn::Linear w1{nullptr}, w2{nullptr}, w3{nullptr};

 private:
  int64_t hidden_size_;
  int64_t intermediate_size_;
};
TORCH_MODULE(SwiGLU);

}  // namespace lockstep::nn

namespace lockstep::expert_parallel {

/// Returns whether grouped_linear can multiply these: a dtype of float32, bfloat16 or float16, and
/// rows of a multiple of 16 bytes, which at::_grouped_mm needs; on CUDA bfloat16 only. Under
/// autocast the dtype is autocast's.
bool can_group(const at::Tensor& rows, const at::Tensor& weight);

/// Multiplies each group of `rows` by its own weight, as torch::nn::functional::linear would.
///
/// `rows`: [sum of counts, in]; `weights`: [out, in] for each group, all of one dtype;
/// `counts`: the rows of each group, 0 or more. Returns [sum of counts, out]. All groups have a
/// defined gradient, also those without rows. Under autocast it computes in autocast's dtype.
///
/// Cost: one at::_grouped_mm, and a copy of all weights, which is freed at once and made again in
/// backward. With the copy it takes 0.5 (128 groups of 64 x 64) to 1.0 (8 of 512 x 256) of the time
/// of a loop on one CPU core. Throws ConfigError for gradients of gradients.
at::Tensor grouped_linear(
    const at::Tensor& rows,
    const std::vector<at::Tensor>& weights,
    const std::vector<int64_t>& counts);

/// Computes each group of `rows` by its expert, by grouped_linear. `rows`: [sum of counts, hidden].
at::Tensor grouped_forward(
    const std::vector<nn::SwiGLU>& experts,
    const at::Tensor& rows,
    const std::vector<int64_t>& counts);

}  // namespace lockstep::expert_parallel
