// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/accelerator/options/zero_plugins.h"
#include "lockstep/base/env.h"

namespace lockstep {

/// The settings that `accelerate launch --use_fsdp` passes through the environment.
struct FsdpEnvironment {
  std::optional<FsdpPlugin> plugin;  ///< Set if ACCELERATE_USE_FSDP is true.
  /// A line for each variable that is set but not used, with the reason.
  std::vector<std::string> not_used;
};

/// Reads ACCELERATE_USE_FSDP and FSDP_VERSION, FSDP_SHARDING_STRATEGY, FSDP_RESHARD_AFTER_FORWARD,
/// FSDP_OFFLOAD_PARAMS, FSDP_AUTO_WRAP_POLICY, FSDP_MIN_NUM_PARAMS, FSDP_TRANSFORMER_CLS_TO_WRAP,
/// FSDP_BACKWARD_PREFETCH and FSDP_STATE_DICT_TYPE, as Accelerate's FullyShardedDataParallelPlugin
/// does. Throws ConfigError, naming the variable, for an unknown word, and for
/// FSDP_IGNORED_MODULES.
FsdpEnvironment read_fsdp_environment(const Environment& environment);

}  // namespace lockstep
