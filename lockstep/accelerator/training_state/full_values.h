// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/step/optimizer.h"
#include "lockstep/comm/group.h"

namespace lockstep::internal {

/// Reads and edits one trained parameter in full: its values in float32, its averaged gradient, or
/// a field of its optimizer state ("exp_avg", "step"). Call it between `backward` and `step`, or
/// between two updates. It works in every stage of ZeRO, and without ZeRO.
///
/// Each call is collective: all ranks, in the same order, with the same parameter. A read costs an
/// all-reduce of the parameter's size. Setting a parameter under ZeRO costs an all-gather of all
/// trained parameters or, in stage 3, unsharding the parameters again. Throws ConfigError on all
/// ranks for values that no rank has, and for values that one rank cannot read.
/// Modelled on deepspeed.utils.safe_get_full_* and safe_set_full_*.
class FullValues {
 public:
  /// `loss_scale`: the factor of gradients until `step`; gradients passed in or out do not have it.
  /// `averaged`: whether the last backward averaged; if not, gradients are refused.
  FullValues(Group group, Optimizer optimizer, double loss_scale, bool averaged)
      : group_(std::move(group)),
        optimizer_(std::move(optimizer)),
        loss_scale_(loss_scale),
        averaged_(averaged) {}

  /// Returns a copy with the parameter's shape, on its device.
  at::Tensor parameter(const at::Tensor& parameter) const;
  /// Returns a copy; undefined if no rank has one.
  at::Tensor gradient(const at::Tensor& parameter) const;
  /// Returns a copy: 0-d for a count, and smaller than the parameter if the optimizer keeps row and
  /// column sums.
  at::Tensor state(const at::Tensor& parameter, const std::string& field) const;

  /// `value`: in full, the same on every rank. After setting a parameter, all ranks' copies and
  /// low-precision copies are updated.
  void set_parameter(const at::Tensor& parameter, const at::Tensor& value) const;
  void set_gradient(const at::Tensor& parameter, const at::Tensor& value) const;
  void set_state(
      const at::Tensor& parameter, const std::string& field, const at::Tensor& value) const;

 private:
  /// Consecutive elements of the flattened parameter; undefined values: this rank has none.
  struct Part {
    at::Tensor values;
    int64_t begin = 0;
  };
  /// Selects a tensor of a parameter or of one of its shard slices.
  using Field = std::function<at::Tensor(const at::Tensor& owned)>;

  Part part_of(const at::Tensor& parameter, const Field& field) const;
  at::Tensor full(const at::Tensor& parameter, const Part& part) const;
  /// Returns optimizer state that each rank with a slice of the parameter has in full: row and
  /// column sums.
  at::Tensor replicated(const at::Tensor& parameter, const Part& part) const;
  void check_averaged() const;
  /// Returns a copy of the full `value`, on all ranks. Throws ConfigError unless it has the shape
  /// of `parameter`.
  static at::Tensor copy_for(const at::Tensor& parameter, const at::Tensor& value);
  /// `own`: a copy of the full value.
  void write(const Part& part, const at::Tensor& own) const;
  Field state_field(const std::string& name) const;

  Group group_;
  Optimizer optimizer_;
  double loss_scale_;
  bool averaged_;
};

}  // namespace lockstep::internal
