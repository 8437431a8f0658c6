// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

#include "cli/common/report.h"

namespace lockstep::cli {

/// The dtype in which fp32, fp16 and bf16 tensors are written; other dtypes are not converted.
enum class MergeDtype : uint8_t { kKeep, kFloat32, kFloat16, kBFloat16 };

/// The names of MergeDtype, in its order.
constexpr std::array<const char*, 4> kMergeDtypes = {"keep", "float32", "float16", "bfloat16"};
/// Parses one of these names. Throws ConfigError, listing them, for another word.
MergeDtype parse_merge_dtype(const std::string& word);

/// The options of merge_weights().
struct MergeOptions {
  int model = 0;  ///< The number of the model: 0 is `model`, 1 is `model_1`.
  MergeDtype dtype = MergeDtype::kFloat32;
  uint64_t max_shard_bytes = std::numeric_limits<uint64_t>::max();  ///< The default is one file.
  bool force = false;                                               ///< Replace existing weights.
};

/// Writes the weights of a checkpoint to the folder `output`, in transformers' format (see
/// write_model_files). Sharded tensors are assembled. A narrower dtype gets the nearest values.
/// Needs memory for the largest tensor that is assembled or converted. Frozen parameters that the
/// checkpoint does not have are named in the report.
///
/// Throws ConfigError if the checkpoint has no such model, if `output` has weights already, is not
/// a folder, or is in a checkpoint. Throws CheckpointError, naming the tensor, for a value out of
/// the range of `dtype`. If it fails, folders that it created are removed.
Report merge_weights(
    const std::filesystem::path& path,
    const std::filesystem::path& output,
    const MergeOptions& options);

}  // namespace lockstep::cli
