// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/loop/optimizer.h"
#include "lockstep/comm/group.h"

namespace lockstep {

/// What all ranks have together of one trained parameter: its values in float32, its averaged
/// gradient, a field of its optimizer state ("exp_avg", "step"), whole, for looking at and for
/// editing between `backward` and `step` or between two updates. In every stage of ZeRO, where
/// ranks have parts of them; without it each rank has them anyway.
///
/// Each call is collective: all ranks, in one order, with the same parameter. A read costs an
/// all-reduce of the parameter's size; setting a parameter under ZeRO an all-gather of all that is
/// trained, or, in stage 3, that whole parameters come anew. ConfigError on all ranks for what
/// nobody has, and for what one rank cannot read. Thread safety: none. After
/// deepspeed.utils.safe_get_full_* and safe_set_full_*.
class FullValues {
 public:
  /// `loss_scale`: what gradients carry until `step`; those that are given and taken do not.
  /// `averaged`: whether the last backward averaged; without, gradients are refused.
  FullValues(Group group, Optimizer optimizer, double loss_scale, bool averaged)
      : group_(std::move(group)),
        optimizer_(std::move(optimizer)),
        loss_scale_(loss_scale),
        averaged_(averaged) {}

  /// A copy, shaped as the parameter, on its device.
  at::Tensor parameter(const at::Tensor& parameter) const;
  /// A copy; undefined if no rank has one.
  at::Tensor gradient(const at::Tensor& parameter) const;
  /// A copy; of no dimensions for a count, and smaller than the parameter where the optimizer keeps
  /// sums of rows and columns.
  at::Tensor state(const at::Tensor& parameter, const std::string& field) const;

  /// `value`: whole, the same on every rank. Of the parameter all ranks, and low-precision copies,
  /// follow.
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
  /// Which tensor of a parameter, or of a piece of one.
  using Field = std::function<at::Tensor(const at::Tensor& owned)>;

  Part part_of(const at::Tensor& parameter, const Field& field) const;
  at::Tensor whole(const at::Tensor& parameter, const Part& part) const;
  /// Of state that each rank with a slice of the parameter has all of: rows, columns.
  at::Tensor undivided(const at::Tensor& parameter, const Part& part) const;
  void check_averaged() const;
  /// A copy of `value`, whole, on all ranks. ConfigError unless it is shaped as `parameter`.
  static at::Tensor copy_for(const at::Tensor& parameter, const at::Tensor& value);
  /// `own`: such a copy.
  void write(const Part& part, const at::Tensor& own) const;
  Field state_field(const std::string& name) const;
  bool anywhere(bool here) const;

  Group group_;
  Optimizer optimizer_;
  double loss_scale_;
  bool averaged_;
};

}  // namespace lockstep
