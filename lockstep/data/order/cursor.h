// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::data {

/// The position of one rank in a loader, and all that a checkpoint keeps of a loader.
///
/// Dataset, batch size, shard and cursor determine the remaining batches. For another number of
/// ranks or batch size, LoaderCore::resharded() converts it.
struct Cursor {
  /// The sampler's seed, 0 if its order depends on none; for a SequenceDataset its length.
  uint64_t seed = 0;
  int64_t epoch = 0;    ///< Epoch of the running or next pass.
  int64_t batches = 0;  ///< Batches of that pass that this rank has received.
  /// Samples of the epoch's order that all ranks together consumed before batch 0 of the pass. Not
  /// 0 if a job with another number of ranks or batch size began the epoch.
  int64_t first_sample = 0;

  bool operator==(const Cursor&) const = default;
};

/// Writes {"seed": 7, "epoch": 2, "batches": 118, "first_sample": 0}.
void to_json(nlohmann::json& json, const Cursor& cursor);
/// Reads it. Throws ConfigError for a missing or unknown key, and for a value that is not an
/// integer in range.
void from_json(const nlohmann::json& json, Cursor& cursor);

}  // namespace lockstep::data
