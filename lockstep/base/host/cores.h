// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace lockstep {

/// Returns the ids of the cores in this process's affinity mask, in ascending order. Returns an
/// empty list if the kernel does not report them.
std::vector<int> available_core_ids();

/// Returns the number of these cores, at least 1; the machine's if the kernel does not report them.
int available_cores();

}  // namespace lockstep
