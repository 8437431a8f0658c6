// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep {

/// Where a project keeps its logs and checkpoints, and how many; Accelerate's class of that name.
struct ProjectConfiguration {
  /// Checkpoints go to `<project_dir>/checkpoints`. Or set AcceleratorOptions::project_dir.
  std::filesystem::path project_dir = {};
  /// Trackers' files and profiles; project_dir if empty.
  std::filesystem::path logging_dir = {};
  /// save_state() without a folder gives it the name checkpoint_<n>; false: it must be given one.
  bool automatic_checkpoint_naming = true;
  /// Checkpoints to keep in `<project_dir>/checkpoints`: once a new one is committed, those
  /// committed earliest go. At least 1.
  std::optional<int> total_limit = std::nullopt;
  /// The least number a new checkpoint gets. Otherwise one more than the highest on the disk.
  int64_t iteration = 0;
  /// save_state() by itself after every so many updates, once the loop's body is done with the
  /// batch; 0: never. In the outermost loop over a prepared loader, where a group of micro-steps
  /// ends.
  int64_t checkpointing_steps = 0;
  /// Those saves are asynchronous.
  bool async_checkpointing = false;
  /// The processes of each host write a checkpoint of their own, to a disk that others do not see.
  bool save_on_each_node = false;
};

/// How save_state writes.
struct SaveStateOptions {
  /// Copy all of it to host memory, return, and write it while training goes on.
  bool async = false;
  /// Replace a checkpoint that is there, once the new one is whole. What is no checkpoint stays.
  bool overwrite = false;
  /// Without the models' parameters that require no gradient; buffers stay. Whoever loads it goes
  /// on with those that the model has.
  bool exclude_frozen_parameters = false;
};

/// How load_state reads.
struct LoadStateOptions {
  /// Compare the checksum of every tensor with what was saved, before anything is changed. Without,
  /// what the disk has damaged goes into the models unseen: for files that were proven already, by
  /// `lockstep checkpoint verify` say. From memory, loading is a third faster then.
  bool verify = true;
  /// A model's tensors and the checkpoint's must be the same ones. Without, those that only one of
  /// them has stay as they are, and a warning names them; shapes must fit all the same.
  bool strict = true;
  /// What else is loaded. What is not stays as it is here, and need not be in the checkpoint.
  /// With the number of their updates, fp16's loss scale, and gradients no update has used yet.
  bool optimizers = true;
  bool schedulers = true;
  /// Where this program has prepared no schedule, those of the checkpoint are left, with a warning.
  bool may_lack_schedulers = false;
  /// Models, and nothing else: no positions of loaders, random numbers, registered objects. The
  /// two above do not matter then.
  bool models_only = false;
};

/// What the last save cost, in this process.
struct SaveTimings {
  int64_t bytes = 0;       ///< Of this process's tensors.
  double stall_ms = 0;     ///< How long save_state kept the training loop.
  double waited_ms = 0;    ///< Of that, for an earlier asynchronous save to end.
  double write_ms = 0;     ///< From the first byte until it was committed.
  bool in_flight = false;  ///< write_ms is not known yet.
};

}  // namespace lockstep
