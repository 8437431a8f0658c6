// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// Checks that the value of an option is one of `words`. The message has the closest word. The help
/// and the completion list all words, as for CLI::IsMember.
CLI::Validator one_of(const std::vector<std::string>& words);

}  // namespace lockstep::cli
