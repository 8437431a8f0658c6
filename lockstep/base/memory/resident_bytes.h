// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lockstep {

/// Returns the resident memory of this process in bytes, or 0 if the kernel does not report it.
/// Takes a microsecond. Thread-safe.
int64_t resident_bytes();

}  // namespace lockstep
