// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace lockstep {

/// The ids of the cores this process may run on (its affinity mask, not what the machine has), in
/// ascending order. Empty if the kernel does not say.
std::vector<int> available_core_ids();

/// The number of these cores; if the kernel does not say, that of the machine. At least 1.
int available_cores();

}  // namespace lockstep
