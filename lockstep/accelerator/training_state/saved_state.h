// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/data/order/cursor.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep {

/// The position of a process in an accumulation group. Each read_* throws CheckpointError, naming
/// file and key, for invalid content.
struct SavedAccumulation {
  int64_t step = 0;
  int64_t in_group = 0;
  int64_t num_steps = 1;
  bool within = false;
  std::optional<double> counted;
  nlohmann::json non_finite;  ///< Input of FiniteGuard.
  std::vector<bool> due;      ///< For each optimizer.
};

SavedAccumulation read_saved_accumulation(
    const storage::StoredCheckpoint& stored, const std::string& file, size_t optimizers);

/// The position of a process's loader.
struct SavedPosition {
  data::Cursor cursor;
  int64_t samples = 0;
  int64_t global_batch_rows = 1;
  std::string path;  ///< The file, for messages.
};

std::vector<SavedPosition> read_saved_positions(
    const storage::StoredCheckpoint& stored, const std::string& file, size_t loaders);

}  // namespace lockstep
