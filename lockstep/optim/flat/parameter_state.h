// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/flat/shard_bounds.h"

namespace lockstep::offload {
class FileTensor;
}  // namespace lockstep::offload

namespace lockstep::optim {

/// The state of one parameter.
struct ParameterState {
  int64_t step = 0;
  std::vector<at::Tensor> fields;   ///< As in `traits().fields`; undefined if it has none.
  std::vector<float> scalars = {};  ///< As in `traits().scalars`.
};

/// One flat buffer, and its updated shard slices.
struct BufferSlices {
  at::Tensor buffer;
  std::vector<at::Tensor> tensors;                      ///< Views of the buffer, in order; leaves.
  std::shared_ptr<offload::FileTensor> file = nullptr;  ///< The buffer's file, if any.
  /// The bounds of the parameters that have slices in this buffer on any rank, in order. Equal on
  /// all ranks.
  std::vector<flat::ShardBounds> full_parameters = {};
};

}  // namespace lockstep::optim
