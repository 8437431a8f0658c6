// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::checkpoint {

/// The `meta` of a manifest that `Accelerator::save_state` wrote.
struct SavedMeta {
  int processes = 1;
  size_t models = 0;
  std::set<size_t> models_taken_over;           ///< By hooks.
  std::vector<std::set<std::string>> left_out;  ///< Of each model, parameters that are not there.
  size_t loaders = 0;
  int64_t step = 0;                      ///< Updates of the first optimizer.
  std::vector<int64_t> optimizer_steps;  ///< Updates that each has done.
  std::vector<nlohmann::json> schedulers;
  std::optional<nlohmann::json> scaler;
  std::vector<bool> objects_differ;  ///< Of each custom object: every process had its own state.
  std::optional<std::vector<int64_t>> local_sgd_steps;
  std::string save_id;  ///< Empty in one that Lockstep wrote before there was such a thing.
};

/// Reads it. CheckpointError, naming the manifest and the key, for what save_state does not write.
SavedMeta read_saved_meta(const StoredCheckpoint& stored);

/// Whether `meta` is save_state's, and not that of a program that uses a Writer by itself.
bool is_saved_state(const nlohmann::json& meta);

}  // namespace lockstep::checkpoint
