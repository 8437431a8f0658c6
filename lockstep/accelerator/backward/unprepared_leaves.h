// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Warns of trained parameters that no prepared model or optimizer has, and that differ between
/// processes.
///
/// A second model whose optimizer was not passed to prepare trains separately in each process, and
/// nothing else detects that. The tensors that a loss depends on are read from its graph, in the
/// first backward passes only. It is a warning, not an error, since some programs have parameters
/// that should differ.
///
/// Cost: in 4 backward passes a walk through the graph, in all but the first an all_gather of 16
/// bytes, and a checksum of such parameters if there are any. Not thread-safe.
class UnpreparedLeaves {
 public:
  /// Reads the graph of a loss before its backward. `prepared`: the parameters of prepared models.
  void read_graph(const at::Tensor& loss, const std::set<const void*>& prepared);
  /// Compares the leaves that the last two graphs have in common, after that backward. Collective.
  void compare(Group& group);
  /// Returns whether no further check is needed.
  bool is_finished() const { return checks_ >= kMaxChecks; }

 private:
  static constexpr int kMaxChecks = 4;

  int checks_ = 0;
  /// Leaves of the last graph; kept, so that their addresses are not reused.
  std::vector<at::Tensor> last_leaves_;
  std::vector<at::Tensor> in_both_graphs_;  ///< Leaves that the last two graphs share.
};

}  // namespace lockstep
