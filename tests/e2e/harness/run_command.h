// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {

/// Runs a program, found in PATH, to its end, and returns its exit code and output. `variables`:
/// NAME=value, added to this process's environment. Only ctest's time limit bounds the run.
Outcome run_command(
    const std::vector<std::string>& words, const std::vector<std::string>& variables = {});

}  // namespace lockstep::e2e
