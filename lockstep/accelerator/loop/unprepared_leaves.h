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
/// Nothing else sees them: a second model whose optimizer was not passed to prepare trains apart in
/// each process. What a loss depends on is read from its graph, in the first backwards only. A
/// warning and no error, since some programs have parameters that are to differ.
///
/// Cost: in 4 backwards a walk through the graph and, but for the first, an all_gather of 16 bytes,
/// and a checksum of such parameters if there are any. Thread safety: none.
class UnpreparedLeaves {
 public:
  /// Reads the graph of a loss before its backward. `prepared`: the parameters of prepared models.
  void look(const at::Tensor& loss, const std::set<const void*>& prepared);
  /// Compares what the last two graphs had in common, after that backward. Collective.
  void compare(Group& group);
  /// Whether all is said.
  bool is_through() const { return looks_ >= kLooks; }

 private:
  static constexpr int kLooks = 4;

  int looks_ = 0;
  std::vector<at::Tensor> seen_;   ///< By the last look; kept, so that no other has its address.
  std::vector<at::Tensor> again_;  ///< By the last two.
};

}  // namespace lockstep
