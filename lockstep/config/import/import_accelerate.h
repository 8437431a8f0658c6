// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/config/document/document.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::config {

/// The result of importing a configuration of Accelerate.
struct Import {
  ConfigValues values;
  std::vector<std::string> without_meaning;  ///< Keys that Lockstep ignores.
  /// Keys with another meaning here, or that the program must handle.
  std::vector<std::string> notes;
};

/// Reads a file of `accelerate config`, release 1.15 or before, in YAML or JSON. A DeepSpeed file
/// that it names (relative to the current folder, as in Accelerate) sets mixed precision, ZeRO
/// stage and gradient accumulation. `mixed_precision: no` needs no quotes, numbers may have some.
///
/// Throws ConfigError, with file:line:column, for unsupported features (TPU, SageMaker, fp8,
/// options of Megatron-LM's own models, accelerators other than CUDA's), for keys that Accelerate
/// does not know, and for invalid values.
Import import_accelerate(const Document& file, const Environment& environment);

/// Returns Accelerate's location of its file: below HF_HOME, XDG_CACHE_HOME or ~/.cache. Throws
/// ConfigError if none of these and no HOME is set.
std::filesystem::path accelerate_config_path(const Environment& environment);

}  // namespace lockstep::config
