// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace lockstep {

/// The ids of the cores this process may run on (its affinity mask, not what the machine has), in
/// ascending order. Empty if the kernel does not say.
std::vector<int> available_core_ids();

/// How many they are; if the kernel does not say, how many the machine has. At least 1.
int available_cores();

}  // namespace lockstep
