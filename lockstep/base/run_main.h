// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace lockstep {

/// Runs the body of a program's main and turns what it throws into one line on stderr and an exit
/// code: ConfigError ends with 2, anything else with 1. A message a launcher can show as it is,
/// where an uncaught exception would end in abort() and a core file. Of torch's errors the frames
/// are left out, unless TORCH_SHOW_CPP_STACKTRACES=1.
int run_main(const std::function<int()>& body);

}  // namespace lockstep
