// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

/// To which cores the ranks of a host are tied.
enum class CpuBind {
  kNone,   ///< None: the scheduler moves them.
  kCores,  ///< An even share of the cores each.
  kNuma    ///< All cores of one memory node (or of several, where there are fewer ranks), shared.
};

/// "none", "cores" or "numa"; ConfigError naming `flag` for anything else.
CpuBind parse_cpu_bind(const std::string& text, const std::string& flag);

/// A core as the kernel numbers it, and what it is part of.
struct Core {
  int id = 0;
  int node = 0;     ///< Memory node.
  int sibling = 0;  ///< The first of the hardware threads that share its execution units.
};

/// The cores this process may run on, neighbours next to each other. `system`: where the kernel
/// tells of nodes and siblings; what it does not tell counts as one node, each core its own.
std::vector<Core> allowed_cores(const std::string& system = "/sys/devices/system");

/// The ids of the cores of each of `ranks` ranks, ascending; empty if they are not tied.
///
/// Cores: consecutive shares whose sizes differ by one at most; with more ranks than cores, some
/// share one. Numa: consecutive ranks share a node. Pure.
std::vector<std::vector<int>> bind_plan(CpuBind bind, const std::vector<Core>& cores, int ranks);

/// "0-3,8" as numbers; nothing if it is no such list. The kernel's own notation.
std::vector<int> parse_core_list(const std::string& text);
/// The other way: "0-3,8" of ascending numbers.
std::string core_list(const std::vector<int>& ids);

}  // namespace lockstep::launcher
