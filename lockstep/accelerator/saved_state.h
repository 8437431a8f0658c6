// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/data/cursor.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep {

/// What a manifest's meta says of a saved training state. Each read_* throws CheckpointError,
/// naming file and key, for what save_state does not write.
struct SavedMeta {
  int processes = 1;
  size_t models = 0;
  std::set<size_t> models_taken_over;           ///< By hooks.
  std::vector<std::set<std::string>> left_out;  ///< Of each model, parameters that are not there.
  size_t loaders = 0;
  std::vector<int64_t> optimizer_steps;  ///< Updates that each has done.
  std::vector<nlohmann::json> schedulers;
  std::optional<nlohmann::json> scaler;
  std::vector<bool> objects_differ;  ///< Of each custom object: every process had its own state.
  std::optional<std::vector<int64_t>> local_sgd_steps;
  std::string save_id;  ///< Empty in one that Lockstep wrote before there was such a thing.
};

SavedMeta read_saved_meta(const checkpoint::StoredCheckpoint& stored);

/// A process's place in a group of micro-steps.
struct SavedAccumulation {
  int64_t step = 0;
  int64_t in_group = 0;
  int64_t num_steps = 1;
  bool within = false;
  std::optional<double> counted;
  nlohmann::json non_finite;  ///< For FiniteGuard.
  std::vector<bool> due;      ///< Of each optimizer.
};

SavedAccumulation read_saved_accumulation(
    const checkpoint::StoredCheckpoint& stored, const std::string& file, size_t optimizers);

/// Where a process's loader stands.
struct SavedPosition {
  data::Cursor cursor;
  int64_t samples = 0;
  int64_t round_rows = 1;
  std::string path;  ///< Of the file, for messages.
};

std::vector<SavedPosition> read_saved_positions(
    const checkpoint::StoredCheckpoint& stored, const std::string& file, size_t loaders);

}  // namespace lockstep
