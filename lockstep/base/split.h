// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// What stands between the separators of `text`, empty parts included: one more than there are
/// separators.
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace lockstep
