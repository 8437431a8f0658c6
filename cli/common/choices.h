// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// Checks that the value of an option is one of `words`; the message names the likeliest. The help
/// and the shells' completions list the words, as they do for CLI::IsMember.
CLI::Validator one_of(const std::vector<std::string>& words);

}  // namespace lockstep::cli
