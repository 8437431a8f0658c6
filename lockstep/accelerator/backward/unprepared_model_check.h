// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/backward/unprepared_leaves.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"

namespace lockstep {

/// Detects models that each process would train on its own because prepare() did not get them.
/// Cost: that of UnpreparedLeaves. Not thread-safe.
class UnpreparedModelCheck {
 public:
  UnpreparedModelCheck(
      const PreparedObjects& objects, LoopState& loop, const LocalSgdScopes& local_sgds)
      : objects_(objects), loop_(loop), local_sgds_(local_sgds) {}

  /// Lets prepared optimizers compare their parameters of no prepared model.
  void watch_optimizers();
  /// Throws ConfigError for a backward of several processes without any prepared model.
  void expect_model() const;
  /// Reads the graph of a loss before its backward, in the first backward passes. Returns whether
  /// compare() must follow the backward. `any_held`: earlier gradients were kept on their process
  /// and not averaged.
  bool read_graph(const at::Tensor& loss, bool any_held);
  /// Warns if the graph has trained parameters that differ between processes. Collective.
  void compare();

 private:
  bool agree(const std::vector<at::Tensor>& parameters) const;

  const PreparedObjects& objects_;
  LoopState& loop_;
  const LocalSgdScopes& local_sgds_;
  UnpreparedLeaves leaves_;
  /// Prepared optimizers hold it weakly, to detect that this object is destroyed.
  std::shared_ptr<const void> alive_ = std::make_shared<int>(0);
};

}  // namespace lockstep
