// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::optim {

/// One parameter and its optimizer state.
struct FlatParameter {
  static constexpr size_t kNoBuffer = std::numeric_limits<size_t>::max();
  static constexpr int64_t kNoHistory = -1;

  at::Tensor parameter;
  std::vector<int64_t> sizes;        ///< The parameter's at construction: its state has them.
  std::vector<int64_t> full_sizes;   ///< `sizes`; for a slice those of its full parameter.
  int64_t step = 0;                  ///< Not updated while `device_step` counts.
  std::vector<at::Tensor> state;     ///< [field] Undefined until first needed.
  std::vector<float> scalars = {};   ///< As in `traits().scalars`; empty before the first update.
  std::vector<double> factors = {};  ///< Computed by `advance` for this update.
  at::Tensor device_step = {};       ///< 0-d, if updates are counted on the device.
  int64_t history = kNoHistory;      ///< See DeviceSteps.
  bool count_was_set = true;         ///< `step` was set since the last update that the host saw.
  size_t buffer = kNoBuffer;         ///< The flat buffer that contains it.
  int64_t offset = 0;                ///< Its offset in the buffer.
};

}  // namespace lockstep::optim
