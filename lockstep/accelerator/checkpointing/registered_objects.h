// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/accelerator/checkpointing/checkpoint_part.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/training_state/checkpointable.h"
#include "lockstep/accelerator/training_state/state_hooks.h"

namespace lockstep::internal {

/// Holds the objects that a program adds to its checkpoints.
class RegisteredObjects final : public CheckpointPart {
 public:
  /// Throws ConfigError for an object that is registered already.
  void add(AnyCheckpointable object);
  /// Adds the objects' states: once, or of every process if they differ. `meta` lists which. The
  /// save fails if an object throws, or processes have registered different numbers of objects.
  /// Collective.
  void collect(StateToSave& state) const override;
  void check(StateToLoad& state) const override;

 private:
  std::vector<AnyCheckpointable> objects_;
};

/// Runs a program's hooks, which may exclude models: before the parts of which they decide.
class ProgramHooks final : public CheckpointPart {
 public:
  explicit ProgramHooks(const PreparedObjects& objects) : objects_(objects) {}

  HookList<SaveStatePreHook>& save_hooks() { return save_hooks_; }
  HookList<LoadStatePreHook>& load_hooks() { return load_hooks_; }
  void collect(StateToSave& state) const override;
  bool is_loaded(const StateToLoad& /*state*/) const override { return true; }
  /// Calls the hooks, which may change the program.
  void check(StateToLoad& state) const override;

 private:
  const PreparedObjects& objects_;
  HookList<SaveStatePreHook> save_hooks_;
  HookList<LoadStatePreHook> load_hooks_;
};

}  // namespace lockstep::internal
