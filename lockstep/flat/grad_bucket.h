// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/bucket_plan.h"

namespace lockstep::flat {

/// The gradients of several parameters in one contiguous buffer.
///
/// Each gradient is a view, so autograd accumulates directly into the buffer. After the gradients
/// the buffer has one flag a parameter, of the same dtype: "this rank has a gradient". The reduced
/// flags tell every rank which parameters were used on any rank, without a separate message.
/// Memory: one copy of the gradients, which is also the parameters' own `grad`.
class GradBucket {
 public:
  /// Allocates with Group::empty of `group`, for reductions with the fewest copies. `more_flags`:
  /// the number of flags of the caller, which are sent after those of the parameters.
  GradBucket(
      BucketPlan plan,
      const std::vector<at::Tensor>& parameters,
      const Group& group = Group(),
      int64_t more_flags = 0);

  const std::vector<BucketEntry>& entries() const { return plan_.entries; }
  /// The planned 16-bit communication dtype, if any.
  std::optional<at::ScalarType> comm_dtype() const { return plan_.comm_dtype; }
  /// The gradient of the parameter in entry `index`, with its shape.
  const at::Tensor& view(size_t index) const { return views_[index]; }
  /// The complete buffer to reduce: gradients, gaps, flags.
  const at::Tensor& buffer() const { return buffer_; }
  /// The parts of `buffer`: gradients with the gaps between them (which are zero), and one flag for
  /// each entry, with the caller's.
  const at::Tensor& gradients() const { return gradients_; }
  const at::Tensor& flag_values() const { return all_flags_; }
  /// The caller's flags, which it writes before a reduction and reads after it.
  const at::Tensor& more_flags() const { return more_flags_; }
  /// The memory of one gradient as a 1-D tensor, in memory order.
  at::Tensor flat_gradient(size_t index) const;
  /// Sets the flag of each entry.
  void set_flags(const std::vector<bool>& present);
  /// Returns, after a sum or an average, the flags that any rank had set. Waits for the device only
  /// if this rank had not set all of them.
  std::vector<bool> flags() const;

 private:
  BucketPlan plan_;
  at::Tensor buffer_;
  at::Tensor gradients_;
  at::Tensor all_flags_;
  at::Tensor flags_;  ///< Of the entries.
  at::Tensor more_flags_;
  at::Tensor host_flags_;       ///< A copy of `flags_` as float32 on the CPU.
  bool all_flags_set_ = false;  ///< This rank has set all flags.
  std::vector<at::Tensor> views_;
};

}  // namespace lockstep::flat
