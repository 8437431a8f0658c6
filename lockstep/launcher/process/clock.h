// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace lockstep::launcher {

/// The monotonic clock of all deadlines.
using Clock = std::chrono::steady_clock;

inline Clock::time_point in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace lockstep::launcher
