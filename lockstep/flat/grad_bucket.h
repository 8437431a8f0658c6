// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/layout.h"

namespace lockstep::flat {

/// The gradients of some parameters in one contiguous buffer.
///
/// Each gradient is a view, so autograd accumulates straight into the buffer. Behind the gradients
/// lies one flag a parameter, of the same dtype: "this rank has a gradient here". Reduced along
/// with the gradients they tell every rank which parameters took part anywhere, without a message
/// of their own. Memory: one copy of the gradients, which is also where the parameters' own `grad`
/// lies.
class GradBucket {
 public:
  /// In memory that `group` reduces with the fewest copies (Group::empty).
  GradBucket(
      BucketPlan plan, const std::vector<at::Tensor>& parameters, const Group& group = Group());

  const std::vector<BucketEntry>& entries() const { return plan_.entries; }
  /// What it is rounded to on its way, as planned.
  std::optional<at::ScalarType> narrow() const { return plan_.narrow; }
  /// The gradient of the parameter in slot `index`, shaped like it.
  const at::Tensor& view(size_t index) const { return views_[index]; }
  /// Everything there is to reduce: gradients, gaps, flags.
  const at::Tensor& buffer() const { return buffer_; }
  /// The parts of `buffer`: gradients with the gaps between them (which are zero), and one flag a
  /// slot.
  const at::Tensor& gradients() const { return gradients_; }
  const at::Tensor& flag_values() const { return flags_; }
  /// The memory of one gradient, flat, in the order it lies there.
  at::Tensor flat(size_t index) const;
  /// One flag a slot.
  void set_flags(const std::vector<bool>& present);
  /// After a sum or an average: which flags any rank had set. Waits for the device only where this
  /// rank had not set all of them.
  std::vector<bool> flags() const;

 private:
  BucketPlan plan_;
  at::Tensor buffer_;
  at::Tensor gradients_;
  at::Tensor flags_;
  at::Tensor host_flags_;  ///< To write and read them by, as float32 on the CPU.
  bool all_here_ = false;  ///< All were set on this rank: so they are on any.
  std::vector<at::Tensor> views_;
};

}  // namespace lockstep::flat
