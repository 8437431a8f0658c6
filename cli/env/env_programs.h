// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/env.h"

namespace lockstep::cli {

/// What a program said of itself.
struct Answer {
  int exit_code = 0;  ///< Or 128 + the signal.
  std::string text;   ///< stdout and stderr, at most 64 KiB.
};

/// Runs `words`, the first one looked up in PATH, with nothing to read, and returns what it wrote.
/// Nothing if it cannot be started, or has not ended after `timeout_ms`: then it is killed, with
/// all that it has started in its process group. For programs that are asked for their version.
std::optional<Answer> ask_program(const std::vector<std::string>& words, int timeout_ms);

/// The file that a shell would run for `name`; empty if there is none.
std::string find_in_path(const std::string& name, const Environment& environment);

}  // namespace lockstep::cli
