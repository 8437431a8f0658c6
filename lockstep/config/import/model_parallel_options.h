// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::config {

/// Translates an option of Accelerate's launcher about model parallelism. If all members are empty,
/// the option asks for nothing.
struct ModelParallelOption {
  std::string mesh_part = {};        ///< A part of a mesh, like "tp=2".
  bool is_distributed_adam = false;  ///< ZeRO stage 1.
  std::string refusal = {};          ///< Why Lockstep refuses it, and what to do instead.
};

/// Reads `--megatron-lm-NAME=VALUE`, or the same key of a file. `name` has underscores:
/// "tp_degree". Degrees of 1 and flags that are off ask for nothing. Returns nullopt for a name
/// that Accelerate 1.15 does not have.
std::optional<ModelParallelOption> megatron_option(
    const std::string& name, const std::string& value);

/// Reads `--parallelism-config-NAME=VALUE`, or the same key of a file, such as "tp_size".
std::optional<ModelParallelOption> parallelism_option(
    const std::string& name, const std::string& value);

/// Return the names that the functions above know.
std::vector<std::string> megatron_option_names();
std::vector<std::string> parallelism_option_names();

}  // namespace lockstep::config
