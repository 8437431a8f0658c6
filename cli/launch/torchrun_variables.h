// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {

/// An option of `lockstep launch` whose value a PET_* variable gave.
struct VariableOption {
  std::string variable;  ///< "PET_NNODES".
  std::string option;    ///< "--nnodes".
};

/// Appends an option to `words` for each PET_* variable of `environment`, as torchrun reads them.
///
/// `launch` is the command with the options; `words` are its options as split_arguments() writes
/// them. PET_<OPTION> gives torchrun's --<option>; Kubeflow Trainer sets PET_NNODES,
/// PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT. A variable that is set
/// but empty counts as not set.
///
/// A pod of Kubeflow's PyTorchJob has WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT without
/// LOCAL_RANK: WORLD_SIZE counts the hosts then, and RANK is that of the host.
///
/// Returns the options that were appended. Throws ConfigError if a variable and an option, or one
/// of our own variables for the same setting, have different values.
std::vector<VariableOption> add_torchrun_variables(
    const Environment& environment, CLI::App& launch, std::vector<std::string>& words);

/// Throws `error` again. Names the variables of those options of `given` that its message mentions.
[[noreturn]] void rethrow_naming_variables(
    const ConfigError& error, const std::vector<VariableOption>& given);

}  // namespace lockstep::cli
