// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/sync/local_sgd/local_sgd.h"

namespace lockstep::internal {

/// Tracks the LocalSgd scopes of one Accelerator in order of construction, and the update counts
/// that a checkpoint restores for scopes that do not exist yet.
class LocalSgdScopes {
 public:
  bool empty() const { return scopes_.empty(); }
  /// Returns whether the model has a scope.
  bool has(const void* model) const;
  /// Adds a scope, which continues after the restored number of updates if there is one.
  void add(const void* model, std::shared_ptr<LocalSgdCore> core);
  void remove(const std::shared_ptr<LocalSgdCore>& core);
  /// Averages the parameters of all scopes. Collective.
  void average();
  /// Returns each scope's number of updates.
  std::vector<int64_t> steps() const;

  /// Restores saved numbers of updates. `own_states`: every process has loaded its own optimizer
  /// state.
  void restore(const std::vector<int64_t>& steps, bool own_states);
  /// Drops restored numbers that no scope has used.
  void forget_restored();
  /// Returns true once if processes have loaded different optimizer states and no scope continues
  /// from them.
  bool take_different_optimizers();
  /// Ends all scopes without communicating, and drops restored numbers.
  void abandon();

 private:
  std::vector<std::pair<const void*, std::shared_ptr<LocalSgdCore>>> scopes_;
  std::vector<std::optional<int64_t>> restored_steps_;
  bool optimizers_differ_ = false;
};

}  // namespace lockstep::internal
