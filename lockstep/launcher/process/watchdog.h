// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {

/// A second process that kills every rank's process group should the launcher die without a word.
///
/// The kernel's parent-death signal reaches a rank itself but not what the rank has started: with
/// `bash train.sh` the training would live on. The watchdog ignores signals, sits in a session of
/// its own and reads a pipe that nobody but the launcher (and, until it executes its program, a
/// rank) can write to. The end of that pipe means that the launcher is gone. A process that has
/// left its rank's group (setsid) is out of its reach.
///
/// Cost: one forked process that holds no memory of its own, and nothing while the job runs. Start
/// it before other threads exist. Not thread-safe.
class Watchdog {
 public:
  Watchdog();
  /// Without dismiss() the groups are killed, as when the launcher dies.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Where a rank writes its pid (one pid_t), the id of its group, before it executes its program.
  int registration_fd() const { return pipe_.get(); }
  /// Ends the watchdog; it kills nothing. Call while the ranks' pids cannot yet have been reused.
  void dismiss();

 private:
  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace lockstep::launcher
