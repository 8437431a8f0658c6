// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

/// RAII scope: records SIGTERM and SIGUSR1 instead of letting them end the process. Batch systems
/// send these signals before they take a machine away. A second SIGTERM two seconds or more after
/// the first ends the process; an earlier one counts as a duplicate of the first.
///
/// Does not touch a signal whose handler the program has changed. Destroying the last instance
/// restores the handlers. Thread-safe.
class StopRequests {
 public:
  StopRequests();
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// The received signal, or 0. It belongs to the process: every StopRequests returns the same.
  static int signal_received();
  /// Forgets the received signal.
  static void clear();
};

}  // namespace lockstep
