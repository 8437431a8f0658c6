// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/accelerator/checkpointing/checkpoint_part.h"
#include "lockstep/accelerator/training_state/checkpointable.h"
#include "lockstep/accelerator/training_state/state_hooks.h"

namespace lockstep {

/// Holds a program's additions to its checkpoints: objects, and hooks of saving and loading.
class RegisteredObjects final : public CheckpointPart {
 public:
  /// Throws ConfigError for an object that is registered already.
  void add(AnyCheckpointable object);
  /// Adds the objects' states: once, or of every process if they differ. `meta` lists which. The
  /// save fails if an object throws, or processes have registered different numbers of objects.
  /// Collective.
  void collect(StateToSave& state) const override;
  void check(StateToLoad& state) const override;

  HookList<SaveStatePreHook>& save_hooks() { return save_hooks_; }
  HookList<LoadStatePreHook>& load_hooks() { return load_hooks_; }

 private:
  std::vector<AnyCheckpointable> objects_;
  HookList<SaveStatePreHook> save_hooks_;
  HookList<LoadStatePreHook> load_hooks_;
};

}  // namespace lockstep
