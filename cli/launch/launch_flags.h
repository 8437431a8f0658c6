// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/base/env.h"
#include "lockstep/config/settings/job_options.h"
#include "lockstep/config/settings/launch_flags.h"
#include "lockstep/launcher/plan/cores.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::cli {

using config::LaunchFlags;

/// Adds an option to `command` for each row of config/settings/setting_table.h, in groups. `flags`
/// must outlive `command`.
void add_launch_flags(CLI::App& command, LaunchFlags& flags);

/// Adds hidden options of torchrun, Accelerate and DeepSpeed that Lockstep does not support. Each
/// throws ConfigError with the reason and an alternative. Adds those about model parallelism, too,
/// which replace_parallelism_options() replaces before.
void add_refused_flags(CLI::App& command);

/// Returns `flags` of the parsed `command`, with missing values taken from the environment, then
/// from the configuration file (see config/config_file.h). Throws ConfigError as config::resolve
/// does.
LaunchFlags with_settings(
    const CLI::App& command, const LaunchFlags& flags, const Environment& environment);

/// Returns the job that `flags` describe on this machine, whose environment is `inherited`. Throws
/// ConfigError that names the flag for an invalid value or a contradiction.
config::JobOptions job_options(
    const LaunchFlags& flags,
    const launcher::Machine& machine,
    const std::vector<std::string>& inherited);

/// Returns the command for find_program() that runs `program`: with --alias the module
/// lockstep.alias, which runs it. Throws ConfigError if there is no program, or if --alias is given
/// for one that is not Python's.
std::vector<std::string> command_of(
    const LaunchFlags& flags, const std::vector<std::string>& program);

/// Returns how the first word of command_of() is executed. Throws ConfigError if two flags
/// contradict each other.
launcher::ProgramKind program_kind(const LaunchFlags& flags);

/// Throws ConfigError of `lockstep launch`.
[[noreturn]] void refuse_launch(const std::string& what);

}  // namespace lockstep::cli
