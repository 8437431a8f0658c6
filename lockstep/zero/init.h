// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/zero/paged_buffer.h"
#include "lockstep/zero/pager.h"

namespace lockstep::zero {

/// Builds a model of which no rank ever has all: a tensor of some size is whole only while it is
/// initialised. When the next one is made, it is cut, and each rank keeps a part of rank 0's
/// values.
///
/// What an operation makes from nothing (`torch::empty`, `torch::randn`) between construction of a
/// WatchNewTensors with this and its end counts, if it is floating point; a module's parameters are
/// such. All ranks must build the same. Sharding then takes the parts over; this may go after.
///
/// Memory: 1/N of the model, and its largest tensor. Sends 2 (N-1)/N of the model: once here, once
/// when Sharding lays it out. Thread safety: none. After DeepSpeed's zero.Init.
class Init final : public TensorTaker {
 public:
  /// Tensors come to be on `device`. Smaller ones than `min_elements` stay whole.
  Init(Group group, at::Device device, int64_t min_elements);
  ~Init() override;

  at::Tensor take(const at::Tensor& made, bool has_values) override;
  /// What was built last is divided, too. Collective.
  void finish();
  /// Elements that were whole at a time.
  int64_t most_live_elements() const { return pager_.most_live_elements(); }

 private:
  class Part;

  Group group_;
  at::Device device_;
  int64_t min_elements_;
  std::vector<std::unique_ptr<Part>> parts_;
  Pager pager_;
};

}  // namespace lockstep::zero
