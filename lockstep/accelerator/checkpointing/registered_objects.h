// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/saving_groups.h"
#include "lockstep/accelerator/training_state/checkpointable.h"
#include "lockstep/accelerator/training_state/state_hooks.h"
#include "lockstep/checkpoint/contents.h"

namespace lockstep {

/// Holds a program's additions to its checkpoints: objects, and hooks of saving and loading. Not
/// thread-safe.
class RegisteredObjects {
 public:
  /// Throws ConfigError for an object that is registered already.
  void add(AnyCheckpointable object);
  const std::vector<AnyCheckpointable>& objects() const { return objects_; }
  /// Adds the objects' states to `contents`: once, or of every process if they differ. `meta` lists
  /// which. The save fails if an object throws, or processes have registered different numbers of
  /// objects. Collective.
  void collect(
      checkpoint::Contents& contents, nlohmann::json& meta, const SavingGroups& groups) const;

  HookList<SaveStatePreHook>& save_hooks() { return save_hooks_; }
  HookList<LoadStatePreHook>& load_hooks() { return load_hooks_; }

 private:
  std::vector<AnyCheckpointable> objects_;
  HookList<SaveStatePreHook> save_hooks_;
  HookList<LoadStatePreHook> load_hooks_;
};

}  // namespace lockstep
