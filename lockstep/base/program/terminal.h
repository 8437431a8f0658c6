// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

namespace lockstep {

/// Returns the width of the terminal behind a descriptor; nothing if it is no terminal or does not
/// say.
std::optional<int> terminal_columns(int fd);

}  // namespace lockstep
