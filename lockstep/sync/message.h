// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "lockstep/comm/group.h"
#include "lockstep/sync/comm_hook.h"

namespace lockstep {

/// The dtype that gradients of dtype `own` travel in; `cast` is kNone, kFp16 or kBf16. What has 16
/// bits already stays as it is.
at::ScalarType wire_type(CommHookType cast, at::ScalarType own);

/// Values that are averaged over the ranks, on the wire perhaps in a narrower dtype.
class Message {
 public:
  /// `values`: flat and contiguous, refilled and sent any number of times.
  Message(at::Tensor values, at::ScalarType wire_type);

  const at::Tensor& values() const { return values_; }
  /// What travels: `values` themselves if their dtype is the wire's.
  const at::Tensor& wire() const { return wire_; }
  bool narrows() const { return !wire_.is_same(values_); }

  /// Fills the wire: a narrower one with values / ranks, so that their sum fits.
  void pack(const Group& group);
  void send(Group& group);
  /// Returns when `values` are the averages. Throws CommError.
  void finish();
  /// Forgets what was sent; with `wait`, once nothing is under way any more.
  void abandon(bool wait) noexcept;

 private:
  at::Tensor values_;
  at::Tensor wire_;
  std::optional<Pending> pending_;
};

}  // namespace lockstep
