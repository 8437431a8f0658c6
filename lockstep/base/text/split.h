// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Splits `text` at each separator. Keeps empty parts, so n separators give n + 1 parts.
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace lockstep
