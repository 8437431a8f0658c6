// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

/// Throws another exception in place of `error`.
using ErrorReplacement = void (*)(const Error& error);

namespace detail {
// One for the process, also with shared libraries.
[[gnu::visibility("default")]] inline ErrorReplacement error_replacement = nullptr;
}  // namespace detail

/// Sets the replacement for errors that leave run_callback; null, the default: none. A language
/// binding sets it once, if the library that calls back forwards no exceptions of unknown types.
inline void set_error_replacement(ErrorReplacement replacement) {
  detail::error_replacement = replacement;
}

/// Runs `body`, which another library has called, such as torch's autograd or its dispatcher. Its
/// errors leave with the type that set_error_replacement chooses.
template <typename Body>
void run_callback(Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const Error& error) {
    if (detail::error_replacement != nullptr) {
      detail::error_replacement(error);
    }
    throw;
  }
}

}  // namespace lockstep
