// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/config/settings/job_options.h"

namespace lockstep::launcher {

/// The file with variables for all ranks of a job with a hostfile: DeepSpeed's `.deepspeed_env`.
inline constexpr const char* kEnvFile = ".lockstep_env";

/// Parses the variables of `text`, in order; the last of a repeated name counts.
///
/// A line is `NAME=value`, optionally after `export `. The value is the rest without spaces at its
/// ends; quotes ("..." and '...') are removed, and nothing is expanded. Empty lines and those that
/// begin with `#` are ignored. Throws ConfigError with file:line:column for anything else. Pure.
std::vector<config::EnvVariable> parse_env_file(const std::string& text, const std::string& file);

/// Reads kEnvFile in each of `folders` that has one; later folders win. Throws ConfigError if a
/// file cannot be read.
std::vector<config::EnvVariable> read_env_files(const std::vector<std::string>& folders);

/// Returns those of `inherited` that are sent to other hosts, as DeepSpeed does: names that begin
/// with NCCL, PYTHON, MV2, UCX or MLFLOW.
std::vector<config::EnvVariable> forwarded_variables(const std::vector<std::string>& inherited);

/// Returns why a job may not set the variable `name` ("is empty", "is set by the launcher itself");
/// empty if it may.
std::string variable_fault(const std::string& name);

/// Parses `--env TEXT`: `NAME=value`, or `NAME` for the launcher's value, in `inherited`. Throws
/// ConfigError for an invalid name, and for a name without a value there.
config::EnvVariable parse_env_flag(
    const std::string& text, const std::vector<std::string>& inherited);

}  // namespace lockstep::launcher
