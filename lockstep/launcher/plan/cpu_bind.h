// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/config/settings/job_options.h"

namespace lockstep::launcher {

/// Parses "none", "cores" or "numa". Throws ConfigError that names `flag` for anything else.
config::CpuBind parse_cpu_bind(const std::string& text, const std::string& flag);

/// A core's number in the kernel, and its position.
struct Core {
  int id = 0;
  int node = 0;     ///< Memory node.
  int sibling = 0;  ///< The first of the hardware threads that share its execution units.
};

/// Returns the cores that this process may use, neighbours adjacent. `system` is the folder of the
/// kernel's files on nodes and siblings; without them there is one node, and no siblings.
std::vector<Core> allowed_cores(const std::string& system = "/sys/devices/system");

/// Returns the core ids of each of `ranks` ranks, ascending; empty without binding.
///
/// With kCores, ranks get consecutive shares whose sizes differ by at most one; with more ranks
/// than cores, some ranks share a core. With kNuma, consecutive ranks share a node. Pure.
std::vector<std::vector<int>> bind_plan(
    config::CpuBind bind, const std::vector<Core>& cores, int ranks);

/// Parses the kernel's notation "0-3,8"; nothing if it is invalid.
std::vector<int> parse_core_list(const std::string& text);
/// Formats ascending numbers as "0-3,8".
std::string core_list(const std::vector<int>& ids);

}  // namespace lockstep::launcher
