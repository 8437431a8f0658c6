// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "lockstep/data/sample/batch.h"

namespace lockstep::data {

/// A dataset of two tensors, inputs and targets; row i of both is sample i. Copies nothing if the
/// rows are contiguous, so with mapped_tensor() the dataset may be larger than memory:
///
///   TensorDataset(
///       mapped_tensor("x.bin", at::kFloat, {3, 32, 32}), mapped_tensor("y.bin", at::kLong, {}))
///
/// The tensors must not change while a loader reads them. Thread-safe.
class TensorDataset {
 public:
  using Batch = ::lockstep::data::Batch;
  /// Reading a sample has no effect but its cost; ranks compare two samples in prepare().
  static constexpr bool kIsInMemory = true;

  /// Throws ConfigError if the two differ in dimension 0, or gather_rows cannot read them.
  TensorDataset(const at::Tensor& data, const at::Tensor& target);

  int64_t size() const { return data_.size(0); }
  Batch get_batch(std::span<const int64_t> indices) const;
  const at::Tensor& data() const { return data_; }
  const at::Tensor& target() const { return target_; }

 private:
  at::Tensor data_;
  at::Tensor target_;
};

}  // namespace lockstep::data
