// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/config/config_file.h"
#include "lockstep/config/document.h"

namespace lockstep::config {

/// What became of a file of Accelerate's.
struct Import {
  ConfigValues values;
  std::vector<std::string> without_meaning;  ///< Keys that say nothing to Lockstep.
  std::vector<std::string> notes;  ///< What means something else here, or is left to the program.
};

/// Reads what `accelerate config` of release 1.15 or before wrote, YAML or JSON, and the DeepSpeed
/// file that it names (relative to the current folder, as in Accelerate), of which mixed precision,
/// ZeRO's stage and gradient accumulation are taken over. `mixed_precision: no` needs no quotes,
/// numbers may have some.
///
/// ConfigError, with file:line:column, for what Lockstep cannot do (TPU, SageMaker, Megatron-LM,
/// fp8, other accelerators than CUDA's), for keys that Accelerate does not know
/// either, and for values that make no sense.
Import import_accelerate(const Document& file, const Environment& environment);

/// Where Accelerate keeps its file: below HF_HOME, XDG_CACHE_HOME or ~/.cache. ConfigError if none
/// of these and no HOME is set.
std::filesystem::path accelerate_config_path(const Environment& environment);

}  // namespace lockstep::config
