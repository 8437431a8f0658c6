// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep {

/// The folders of a project's logs and checkpoints, and how many to keep; Accelerate's class of
/// that name.
struct ProjectConfiguration {
  /// Checkpoints are in `<project_dir>/checkpoints`. Or set AcceleratorOptions::project_dir.
  std::filesystem::path project_dir = {};
  /// The folder of trackers' files and profiles; project_dir if empty.
  std::filesystem::path logging_dir = {};
  /// True: save_state() without a folder names it checkpoint_<n>. False: a folder is required.
  bool automatic_checkpoint_naming = true;
  /// Checkpoints to keep in `<project_dir>/checkpoints`: after a new one is committed, the oldest
  /// ones are removed. At least 1.
  std::optional<int> total_limit = std::nullopt;
  /// The lowest number of a new checkpoint, which is one more than the highest on the disk.
  int64_t iteration = 0;
  /// Updates between two automatic save_state() calls, at the end of the loop's body; 0: never.
  /// Only in the outermost loop over a prepared loader, at the end of an accumulation group.
  int64_t checkpointing_steps = 0;
  /// Makes automatic saves asynchronous.
  bool async_checkpointing = false;
  /// The processes of each host write their own checkpoint, to a disk that other hosts do not see.
  bool save_on_each_node = false;
};

/// Options of save_state.
struct SaveStateOptions {
  /// Copies the state to host memory, returns, and writes it during training.
  bool async = false;
  /// Replaces an existing checkpoint after the new one is complete. A folder that is not a
  /// checkpoint is never replaced.
  bool overwrite = false;
  /// Omits the models' frozen parameters; buffers are saved. A program that loads it keeps the
  /// values that its model has.
  bool exclude_frozen_parameters = false;
};

/// Options of load_state.
struct LoadStateOptions {
  /// Compares the checksum of every tensor with the saved one before anything is changed. False:
  /// disk damage is loaded unnoticed; for files that were verified already, for instance by
  /// `lockstep checkpoint verify`. It makes loading from the page cache a third faster.
  bool verify = true;
  /// True: the tensors of a model and of the checkpoint must be the same. False: tensors in only
  /// one of them are left unchanged, with a warning that names them; shapes must still match.
  bool strict = true;
  /// The other states to load; the rest stays unchanged and need not be in the checkpoint. The
  /// optimizers' includes the number of updates, fp16's loss scale, and unused gradients.
  bool optimizers = true;
  bool schedulers = true;
  /// Without a prepared schedule, those of the checkpoint are skipped, with a warning.
  bool may_lack_schedulers = false;
  /// Without a loader's position in the checkpoint, loaders begin their first epoch, with a
  /// warning.
  bool may_lack_positions = false;
  /// Loads only the models: no loader positions, random numbers or registered objects. The two
  /// options above have no effect then.
  bool models_only = false;
  /// False: only models and optimizers are loaded, no schedules, loader positions, random numbers or
  /// registered objects, for a program that restores its loop itself.
  bool training_loop = true;
};

/// Cost of the last save, in this process.
struct SaveTimings {
  int64_t bytes = 0;       ///< Of this process's tensors.
  double stall_ms = 0;     ///< Time that save_state blocked the training loop.
  double waited_ms = 0;    ///< Part of it: waiting for an earlier asynchronous save.
  double write_ms = 0;     ///< From the first byte until the commit.
  bool in_flight = false;  ///< write_ms is not known yet.
};

}  // namespace lockstep
