// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Expands a SLURM node list, as `scontrol show hostnames` does: "n[08-10],gpu3" is n08, n09, n10,
/// gpu3. Returns an empty list if it is malformed or names more than 65,536 hosts. Thread-safe.
std::vector<std::string> slurm_hosts(const std::string& node_list);

}  // namespace lockstep
