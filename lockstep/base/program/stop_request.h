// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

/// RAII scope: records SIGTERM and SIGUSR1 instead of letting them end the process. Batch systems
/// send these signals before they take a machine away. A second SIGTERM two seconds or more after
/// the first ends the process; an earlier one counts as a duplicate of the first.
///
/// Keeps a handler that the program has installed. Destroying the last instance restores the
/// default handlers. Thread-safe.
class StopRequests {
 public:
  StopRequests();
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// Returns the signal that this process has received, or 0.
  static int signal_received();
  /// Forgets the received signal.
  static void clear();
};

}  // namespace lockstep
