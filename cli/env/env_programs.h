// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/env.h"

namespace lockstep::cli {

/// The output of a program.
struct Answer {
  int exit_code = 0;  ///< The exit code, or 128 + the signal.
  std::string text;   ///< stdout and stderr, at most 64 KiB.
};

/// Runs the command `words`, whose program is searched in PATH, without stdin, and returns its
/// output. Returns nothing if it cannot be started, or has not ended after `timeout_ms`; then its
/// process group is killed.
std::optional<Answer> ask_program(const std::vector<std::string>& words, int timeout_ms);

/// Returns the file that a shell would run for `name`; empty if there is none.
std::string find_in_path(const std::string& name, const Environment& environment);

}  // namespace lockstep::cli
