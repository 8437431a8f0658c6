// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace lockstep::launcher {

/// The exit code of a job whose time was up, or that stalled: timeout(1)'s.
inline constexpr int kExitTimedOut = 124;

/// How a process ended.
struct ExitStatus {
  bool by_signal = false;
  int value = 0;  ///< The signal's number, or the exit code.
  bool core_dumped = false;

  bool is_success() const { return !by_signal && value == 0; }
  /// What a shell would say: the code, or 128 + the signal.
  int exit_code() const;
  /// "was killed by SIGKILL (signal 9)", "ended with exit code 3".
  std::string description() const;
};

/// "SIGTERM"; "signal 40" for one without a name.
std::string signal_name(int signal);

/// A rank that failed by itself, as opposed to one that was told to stop.
struct RankFailure {
  int rank = 0;
  pid_t pid = 0;
  ExitStatus exit_status;
  std::string diagnostic{};  ///< Why this is a failure, where the ending alone does not say.
  double seconds = 0;        ///< Since the job's start.
  int round = 0;             ///< Of the launcher's loop: equal ones were seen at once.
  bool lost_peer = false;    ///< Its last operation had failed: likely for want of another rank.
  bool stalled = false;      ///< It did not end, but stopped going on; `remark` says how.

  /// "was killed by SIGKILL (signal 9)", "stalled".
  std::string description() const;
  /// "rank 3 of 4 ended with exit code 3 after 1.2 s; it did not say why".
  std::string sentence(int ranks) const;
  /// What the job's exit code is because of it.
  int exit_code() const;
};

/// The failure that most likely brought the others about, out of those seen within a moment.
///
/// A rank killed from outside (or by its own fault, like SIGSEGV) takes its peers along within
/// milliseconds, and which death is noticed first is chance; so such a signal comes before an exit
/// code. A stalled rank comes before all: the others end because of it. SIGABRT and SIGPIPE do not
/// count as such: they are how a peer's loss ends many a program. Then one whose last operation did
/// not fail, the earlier round, the lower rank. `failures` must not be empty.
RankFailure root_cause(const std::vector<RankFailure>& failures);

}  // namespace lockstep::launcher
