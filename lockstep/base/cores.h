// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

/// Cores this process may run on (its affinity mask, not what the machine has).
int available_cores();

}  // namespace lockstep
