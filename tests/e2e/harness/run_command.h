// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/launch_harness.h"

namespace lockstep::e2e {

/// Runs a program, found in PATH, to its end. `variables`: NAME=value, added to this process's
/// environment. Bounded by the test's own time limit.
Outcome run_command(
    const std::vector<std::string>& words, const std::vector<std::string>& variables = {});

}  // namespace lockstep::e2e
