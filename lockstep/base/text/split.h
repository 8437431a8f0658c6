// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Splits `text` at each separator; empty parts are kept, so there is one part more than
/// separators.
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace lockstep
