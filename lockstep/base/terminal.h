// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

namespace lockstep {

/// The width of the terminal behind a descriptor; nothing if there is none, or it does not say.
std::optional<int> terminal_columns(int fd);

}  // namespace lockstep
