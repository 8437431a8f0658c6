// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/zero_options/fsdp_plugin.h"

namespace lockstep::internal {

/// The settings that `accelerate launch --use_fsdp` passes through the environment.
struct FsdpEnvironment {
  std::optional<FsdpPlugin> plugin;  ///< Set if ACCELERATE_USE_FSDP is true.
  /// A line for each variable that is set but not used, with the reason.
  std::vector<std::string> not_used;
};

/// Reads ACCELERATE_USE_FSDP and the variables of fsdp::kOptions, as Accelerate's
/// FullyShardedDataParallelPlugin does. Throws ConfigError, naming the variable, for an unknown
/// word, and for an option that Lockstep refuses.
FsdpEnvironment read_fsdp_environment(const Environment& environment);

}  // namespace lockstep::internal
