// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::data {

/// Where one rank stands in its stream of batches. Together with dataset, batch size and shard it
/// says exactly which batches are still to come, so it is all a checkpoint keeps of a loader. In
/// another number of ranks or batch size LoaderCore::resharded() goes on where it was.
struct Cursor {
  uint64_t seed =
      0;  ///< Of the sampler; 0 if its order depends on none. Of a SequenceDataset its length.
  int64_t epoch = 0;    ///< Of the running or next pass.
  int64_t batches = 0;  ///< Batches of that pass already handed out to this rank.
  /// Samples of the epoch's order that all ranks together had consumed before the pass's batch 0:
  /// in another layout, which a job with another number of ranks or another batch size began in.
  int64_t first_sample = 0;

  bool operator==(const Cursor&) const = default;
};

/// {"seed": 7, "epoch": 2, "batches": 118, "first_sample": 0}.
void to_json(nlohmann::json& json, const Cursor& cursor);
/// ConfigError for a missing or unknown key, and for what is no whole number of the right sign.
void from_json(const nlohmann::json& json, Cursor& cursor);

}  // namespace lockstep::data
