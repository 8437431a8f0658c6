// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

/// Replaces Accelerate's options `--parallelism-config-tp-size=2`, `--megatron-lm-tp-degree=2` and
/// the like in the words of `lockstep launch` by `--mesh=tp=2` and `--zero-stage=1`, and removes
/// those that ask for nothing. Throws ConfigError for others, and for sizes beside --mesh.
void replace_parallelism_options(std::vector<std::string>& words);

/// Returns the names of these options, such as "--megatron-lm-tp-degree".
std::vector<std::string> parallelism_option_flags();

}  // namespace lockstep::cli
