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

namespace lockstep::storage {

/// The `meta` of a manifest of `Accelerator::save_state`.
struct SavedMeta {
  int processes = 1;
  /// The dimensions of the mesh that divide the model, like "tp=2"; empty: none.
  std::string mesh;
  size_t models = 0;
  std::set<size_t> excluded_models;  ///< Models that a hook saves.
  /// For each model, the parameters that were not saved.
  std::vector<std::set<std::string>> left_out;
  size_t loaders = 0;
  int64_t step = 0;                      ///< Updates of the first optimizer.
  std::vector<int64_t> optimizer_steps;  ///< Updates of each optimizer.
  std::vector<nlohmann::json> schedulers;
  std::optional<nlohmann::json> scaler;
  std::vector<bool> objects_differ;  ///< For each custom object: every process had its own state.
  std::optional<std::vector<int64_t>> local_sgd_steps;
  /// The place in the program's epochs() ranges, for each level of nesting; empty before the first.
  std::vector<int64_t> epoch_ranges;
  std::vector<int64_t> epochs_done;
  std::string save_id;  ///< Empty in saves of old versions.
};

/// Reads the `meta` of a manifest. Throws CheckpointError, naming the manifest and the key, for
/// invalid content.
SavedMeta read_saved_meta(const StoredCheckpoint& stored);

/// Returns whether `meta` is save_state's, and not that of a program that uses a Writer directly.
bool is_saved_state(const nlohmann::json& meta);

}  // namespace lockstep::storage
