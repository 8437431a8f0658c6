// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

/// Returns the text of an errno value. If a limit of this process is the cause, the text names the
/// limit and the command that raises it. Thread-safe.
std::string system_error_text(int error);

}  // namespace lockstep
