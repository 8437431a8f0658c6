// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "cli/report.h"

namespace lockstep::cli {

struct MergeOptions {
  int model = 0;  ///< Which of several: the set `model`, `model_1` and so on.
  uint64_t max_shard_bytes = 5'000'000'000;
  bool force = false;  ///< Replace weights that are there.
};

/// Writes the weights in a checkpoint to `output`, a folder, as transformers reads them, see
/// write_model_files; puts together what is divided among files. Needs memory for the largest
/// tensor that is. Frozen parameters that the run saved without are named, and not written.
/// ConfigError if the checkpoint has no such model, with those it has, if there are
/// weights already, and if the output is no folder or lies in a checkpoint. If it fails, folders
/// that it made are gone.
Report merge_weights(
    const std::filesystem::path& path,
    const std::filesystem::path& output,
    const MergeOptions& options);

}  // namespace lockstep::cli
