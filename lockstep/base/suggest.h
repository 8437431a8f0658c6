// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// The tail of an error message about a name nobody knows: "; did you mean 'jsonl'?", or nothing
/// where no known name is close. Close means at most one edit in three letters (a swap of
/// neighbours is one).
std::string did_you_mean(const std::string& got, const std::vector<std::string>& known);

}  // namespace lockstep
