// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

#include "cli/common/report.h"

namespace lockstep::cli {

/// What tensors of fp32, fp16 and bf16 are written as; float64, integers and all else stay.
enum class MergeDtype : uint8_t { kKeep, kFloat32, kFloat16, kBFloat16 };

/// "keep", "float32" and so on, in that order.
constexpr std::array<const char*, 4> kMergeDtypes = {"keep", "float32", "float16", "bfloat16"};
/// ConfigError, naming what there is, for a word that is none of them.
MergeDtype parse_merge_dtype(const std::string& word);

struct MergeOptions {
  int model = 0;  ///< Which of several: the set `model`, `model_1` and so on.
  MergeDtype dtype = MergeDtype::kFloat32;
  uint64_t max_shard_bytes = std::numeric_limits<uint64_t>::max();  ///< By default one file.
  bool force = false;  ///< Replace weights that are there.
};

/// Writes the weights in a checkpoint to `output`, a folder, as transformers reads them, see
/// write_model_files; puts together what is divided among files. What is wider in `dtype` has the
/// same values, what is narrower the nearest. Needs memory for the largest tensor, as it is
/// written, among those that are divided or converted. Frozen parameters that the run saved without
/// are named, and not written.
///
/// ConfigError if the checkpoint has no such model, with those it has, if there are weights
/// already, and if the output is no folder or lies in a checkpoint. CheckpointError, naming the
/// tensor, for a value that `dtype` is too small for. If it fails, folders that it made are gone.
Report merge_weights(
    const std::filesystem::path& path,
    const std::filesystem::path& output,
    const MergeOptions& options);

}  // namespace lockstep::cli
