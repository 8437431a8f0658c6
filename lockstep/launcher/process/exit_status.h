// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace lockstep::launcher {

/// The exit code of a job that reached its time limit, or stalled; the same as timeout(1)'s.
inline constexpr int kExitTimedOut = 124;

/// The exit status of a process.
struct ExitStatus {
  bool by_signal = false;
  int value = 0;  ///< The signal's number, or the exit code.
  bool core_dumped = false;

  bool is_success() const { return !by_signal && value == 0; }
  /// Returns the exit status as a shell reports it: the code, or 128 + the signal.
  int exit_code() const;
  /// Returns "was killed by SIGKILL (signal 9)" or "ended with exit code 3".
  std::string description() const;
};

/// Returns "SIGTERM", or "signal 40" for a signal without a name.
std::string signal_name(int signal);

/// A rank that failed on its own, not because the launcher stopped it.
struct RankFailure {
  int rank = 0;
  pid_t pid = 0;
  ExitStatus exit_status;
  std::string diagnostic{};  ///< The reason, if the exit status does not show it.
  double seconds = 0;        ///< Since the job's start.
  int order = 0;             ///< Order of detection; equal for failures detected together.
  /// Its last operation failed, probably because another rank was lost.
  bool lost_peer = false;
  bool stalled = false;  ///< It runs without progress, as `diagnostic` describes.

  /// Returns "was killed by SIGKILL (signal 9)" or "stalled".
  std::string description() const;
  /// Returns "rank 3 of 4 ended with exit code 3 after 1.2 s; the connection was lost".
  std::string sentence(int ranks) const;
  /// Returns the job's exit code for this failure.
  int exit_code() const;
};

/// Returns the failure that most likely caused the others, among those seen at the same time.
///
/// A rank killed by a signal (also by its own fault, like SIGSEGV) makes its peers fail within
/// milliseconds. The order of arrival is random, so a signal precedes an exit code. SIGABRT and
/// SIGPIPE do not count: many programs end by them when a peer is lost. A stalled rank precedes
/// all: the others end because of it. Next come a rank whose last operation did not fail, the
/// earlier failure, the lower rank. `failures` must not be empty.
RankFailure root_cause(const std::vector<RankFailure>& failures);

}  // namespace lockstep::launcher
