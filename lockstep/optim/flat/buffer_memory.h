// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep::optim {

/// Allocates the memory of flat buffers: process memory, or, after `share`, memory that several
/// ranks map.
class BufferMemory {
 public:
  /// Makes later allocations shared by the ranks of `group`, and collective.
  void share(const Group& group) { sharing_group_ = group; }
  bool is_shared() const { return sharing_group_.has_value(); }
  /// Returns whether this rank writes initial values: without sharing every rank does, else only
  /// rank 0.
  bool is_writer() const { return !sharing_group_ || sharing_group_->rank() == 0; }

  /// Returns `numel` zeros. Throws ConfigError, on all ranks, if they have no shared memory.
  at::Tensor zeros(int64_t numel, const at::TensorOptions& options);
  /// Returns a shared tensor with the strides of `from` and rank 0's values.
  at::Tensor shared_copy(const at::Tensor& from);
  /// Blocks until rank 0's values are visible to all ranks, if shared.
  void wait_for_writer();

 private:
  std::optional<Group> sharing_group_;
};

}  // namespace lockstep::optim
