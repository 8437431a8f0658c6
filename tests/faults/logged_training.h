// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "lockstep/base/memory/crc32c.h"
#include "lockstep/lockstep.h"

/// Training of fault_fixture and resume_fixture, and the lines that they log for a bit-exact
/// comparison.
namespace lockstep::faults {

/// A network of two layers with dropout.
class DropoutNetImpl : public torch::nn::Module {
 public:
  explicit DropoutNetImpl(int64_t width)
      : in_(register_module("in", torch::nn::Linear(6, width))),
        out_(register_module("out", torch::nn::Linear(width, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    return out_->forward(at::dropout(at::relu(in_->forward(x)), 0.3, is_training()));
  }
  /// The loss of a batch of `numbered_samples`.
  at::Tensor loss(const data::Batch& batch) {
    return at::cross_entropy_loss(forward(batch.data), batch.target.remainder(4));
  }

 private:
  torch::nn::Linear in_;
  torch::nn::Linear out_;
};
TORCH_MODULE(DropoutNet);

/// Returns random samples. Sample i has the target i, so that a batch shows its samples.
inline data::TensorDataset numbered_samples(int64_t count) {
  data::set_seed(5);
  const at::Tensor rows = at::rand({count, 6});
  return {rows, at::arange(count)};
}

/// Returns a line with the step, the samples and the bits of the loss.
inline std::string line_of_step(int64_t step, const at::Tensor& samples, float loss) {
  std::string line = fmt::format("{}:", step);
  for (int64_t i = 0; i < samples.numel(); ++i) {
    line += fmt::format(" {}", samples[i].item<int64_t>());
  }
  return line + fmt::format(" {:08x}\n", std::bit_cast<uint32_t>(loss));
}

/// Returns the CRC-32C of all parameters.
inline uint32_t checksum_of(const torch::nn::Module& module) {
  uint32_t checksum = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    checksum = crc32c(checksum, parameter.const_data_ptr(), parameter.nbytes());
  }
  return checksum;
}

}  // namespace lockstep::faults
