// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

namespace lockstep {

/// Returns the width of the terminal at a descriptor, in columns. Returns nothing if the descriptor
/// is not a terminal, or reports no width.
std::optional<int> terminal_columns(int fd);

}  // namespace lockstep
