// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace lockstep {

/// Runs the body of a program's main. Turns an exception into one line on stderr and an exit code:
/// 2 for ConfigError, 1 for any other. The line replaces abort() and a core file. It omits the
/// stack frames of torch's errors, unless TORCH_SHOW_CPP_STACKTRACES=1.
int run_main(const std::function<int()>& body);

}  // namespace lockstep
