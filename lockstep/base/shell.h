// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// `words` as one line for a shell, each in quotes where it needs them: what is printed to be
/// pasted.
std::string shell_quoted(const std::vector<std::string>& words);

}  // namespace lockstep
