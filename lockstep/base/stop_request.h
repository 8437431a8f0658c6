// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

/// While one of these lives, SIGTERM and SIGUSR1 are noted instead of ending the process: what
/// batch systems send before they take a machine away. A SIGTERM that comes two seconds or more
/// after one ends it as ever; sooner it is taken for the same, sent along another way.
///
/// A signal whose handling the program has changed itself is left to it. Destroying the last one
/// puts the handling back. Thread-safe.
class StopRequests {
 public:
  StopRequests();
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// The signal that came, or 0. Of the process: every StopRequests sees the same.
  static int signal_received();
  /// Forgets it.
  static void clear();
};

}  // namespace lockstep
