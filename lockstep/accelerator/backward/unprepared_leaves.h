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
/// first backwards only. It is a warning, not an error, since some programs have parameters that
/// should differ.
///
/// Cost: in 4 backwards a walk through the graph, in all but the first an all_gather of 16 bytes,
/// and a checksum of such parameters if there are any. Not thread-safe.
class UnpreparedLeaves {
 public:
  /// Reads the graph of a loss before its backward. `prepared`: the parameters of prepared models.
  void look(const at::Tensor& loss, const std::set<const void*>& prepared);
  /// Compares the leaves that the last two graphs have in common, after that backward. Collective.
  void compare(Group& group);
  /// Whether no further check is needed.
  bool is_through() const { return looks_ >= kLooks; }

 private:
  static constexpr int kLooks = 4;

  int looks_ = 0;
  /// By the last look; kept, so that their addresses are not reused.
  std::vector<at::Tensor> seen_;
  std::vector<at::Tensor> again_;  ///< By the last two.
};

}  // namespace lockstep
