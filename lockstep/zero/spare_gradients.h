// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep::zero {

/// Memory for whole buckets of gradients, which exist only while they are under way. On the CPU
/// that of small ones, up to 1 MiB each and 4 MiB in all, is kept from one backward to the next and
/// is the group's own (Group::empty), so that peers reduce it where it lies: what a small network
/// is sent by would else cost more in copies than in sums. Large ones come and go. Thread safety:
/// none.
class SpareGradients {
 public:
  /// Not initialised, 1-D.
  at::Tensor take(const Group& group, int64_t elements, const at::TensorOptions& options);
  /// Nobody uses `gradients` any more.
  void give(at::Tensor gradients);

 private:
  std::vector<at::Tensor> spares_;
  int64_t bytes_ = 0;
};

}  // namespace lockstep::zero
