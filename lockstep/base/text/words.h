// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// Returns the text with ASCII letters in lower case.
std::string lower(std::string text);

/// Parses true or false, yes or no, on or off, 1 or 0, in any case.
std::optional<bool> truth_value(const std::string& text);

/// Returns whether the text is valid UTF-8.
bool is_utf8(const std::string& text);

/// Formats "12 files" or "1 file".
std::string counted(size_t count, const std::string& noun);

/// Formats "rank 1" or "ranks 1, 2".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace lockstep
