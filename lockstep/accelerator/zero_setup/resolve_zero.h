// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/accelerator/options/options.h"
#include "lockstep/base/env.h"
#include "lockstep/base/host/world.h"
#include "lockstep/comm/group.h"

namespace lockstep::internal {

/// The facts about a job that ZeRO's options depend on.
struct ZeroFacts {
  int processes = 1;
  /// The result of uniform_host_size, if needs_host_size; else 0.
  int host_size = 0;
};

/// ZeRO's settings of a run.
struct ResolvedZero {
  std::optional<ZeroPlugin> plugin;  ///< None: data parallel.
  /// A line for each variable of the environment that is set but not used, with the reason.
  std::vector<std::string> not_used;
};

/// Checks the options of ZeRO against each other and against `facts`, and returns its settings.
///
/// The settings come from AcceleratorOptions::zero, fsdp_plugin or deepspeed_plugin; else from
/// LOCKSTEP_ZERO_STAGE; else from the variables of `accelerate launch --use_fsdp`. All rules that
/// need no model are checked here. A pure function. Throws ConfigError for options that are out of
/// range, contradict each other, or do not fit the number of processes.
ResolvedZero resolve_zero(
    const AcceleratorOptions& options, const Environment& environment, const ZeroFacts& facts);

/// Returns whether resolve_zero depends on ZeroFacts::host_size. Throws ConfigError for two sets of
/// options, and for invalid variables.
bool needs_host_size(const AcceleratorOptions& options, const Environment& environment);

/// Returns the number of processes of a host, or 0 unless all hosts have the same number and the
/// ranks of each host are consecutive. Collective.
int uniform_host_size(const WorldSpec& world, Group group);

}  // namespace lockstep::internal
