// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Returns "; did you mean 'jsonl'?" for a message about an unknown name; "" if no known name is
/// close. Close means at most one edit in three letters; swapping two neighbours is one edit.
std::string did_you_mean(const std::string& got, const std::vector<std::string>& known);

}  // namespace lockstep
