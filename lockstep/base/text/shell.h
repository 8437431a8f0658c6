// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Joins `words` into one line that a user can paste into a shell; quotes them where necessary.
std::string shell_quoted(const std::vector<std::string>& words);

}  // namespace lockstep
