// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "lockstep/comm/group.h"
#include "lockstep/sync/comm_hook/comm_hook.h"

namespace lockstep {

/// Returns the communication dtype of gradients of dtype `own`; `cast` is kNone, kFp16 or kBf16.
/// 16-bit types stay as they are.
at::ScalarType hook_comm_dtype(CommHookType cast, at::ScalarType own);

/// Averages values over the ranks by all-reduces, which may send them in a 16-bit dtype.
class AveragingAllReduce {
 public:
  /// `values`: flat and contiguous, refilled and sent any number of times.
  AveragingAllReduce(at::Tensor values, at::ScalarType comm_dtype);

  const at::Tensor& values() const { return values_; }
  /// The sent tensor: `values` if their dtype is the communication dtype.
  const at::Tensor& sent() const { return sent_; }
  bool is_cast() const { return !sent_.is_same(values_); }

  /// Fills the sent tensor. A 16-bit one gets values / ranks, so that the sum does not overflow.
  void pack(const Group& group);
  void send(Group& group);
  /// Blocks until `values` are the averages. Throws CommError.
  void finish();
  /// Drops a started operation; with `wait`, after it has finished.
  void abandon(bool wait) noexcept;

 private:
  at::Tensor values_;
  at::Tensor sent_;
  std::optional<Pending> pending_;
};

}  // namespace lockstep
