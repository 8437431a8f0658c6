// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Joins `words` into one line for a shell, quoted where necessary, for messages that users paste.
std::string shell_quoted(const std::vector<std::string>& words);

}  // namespace lockstep
