// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launcher/plan/job_options.h"

namespace lockstep::launcher {

/// Holds variables for all ranks of a job that has a hostfile: DeepSpeed's `.deepspeed_env`.
inline constexpr const char* kEnvFile = ".lockstep_env";

/// The variables that `text` sets, in its order; of a name given twice the last counts.
///
/// A line is `NAME=value`, with an `export ` before it if you like. The value is all that follows,
/// spaces at its ends cut off, in quotes or not ("..." and '...' are taken off, nothing in them is
/// replaced). Empty lines and those that begin with `#` do no harm. ConfigError with
/// file:line:column for anything else. Pure.
std::vector<EnvVariable> parse_env_file(const std::string& text, const std::string& file);

/// The variables of kEnvFile in each of `folders` that has one; later folders win. A file that is
/// there but cannot be read is a ConfigError.
std::vector<EnvVariable> read_env_files(const std::vector<std::string>& folders);

/// Those of `inherited` that go along to other hosts, as DeepSpeed's: named NCCL..., PYTHON...,
/// MV2..., UCX... or MLFLOW....
std::vector<EnvVariable> travelling_variables(const std::vector<std::string>& inherited);

/// Why `name` is no name of a variable that a job may set ("is empty", "is set by the launcher
/// itself"); empty if it is one.
std::string variable_fault(const std::string& name);

/// What `--env TEXT` says: `NAME=value`, or `NAME` for the launcher's own value, in `inherited`.
/// ConfigError for a name with a fault or, alone, without a value.
EnvVariable parse_env_flag(const std::string& text, const std::vector<std::string>& inherited);

}  // namespace lockstep::launcher
