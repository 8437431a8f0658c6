// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/tensor_dataset.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/data/sample/rows.h"

namespace lockstep::data {

TensorDataset::TensorDataset(const at::Tensor& data, const at::Tensor& target)
    : data_(data.detach()), target_(target.detach()) {
  require_rows("TensorDataset: data", data_);
  require_rows("TensorDataset: target", target_);
  if (data_.size(0) != target_.size(0)) {
    throw ConfigError(
        "TensorDataset",
        fmt::format(
            "data and target differ in the number of samples; got {} and {}, expected the same "
            "dimension 0",
            data_.size(0),
            target_.size(0)));
  }
}

Batch TensorDataset::get_batch(std::span<const int64_t> indices) const {
  return {.data = gather_rows(data_, indices), .target = gather_rows(target_, indices)};
}

}  // namespace lockstep::data
