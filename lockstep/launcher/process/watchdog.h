// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {

/// A second process that kills every rank's process group if the launcher dies.
///
/// The kernel's parent-death signal reaches a rank but not its children: with `bash train.sh` the
/// training would survive. The watchdog ignores signals, has its own session, and reads a pipe that
/// only the launcher (and a rank before its exec) can write to. The end of that pipe means that the
/// launcher is gone. A process that has left its rank's group (setsid) is out of its reach.
///
/// Cost: one forked process that is idle while the job runs and shares the launcher's memory. Start
/// it before other threads exist.
class Watchdog {
 public:
  Watchdog();
  /// Without dismiss() the groups are killed, as when the launcher dies.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Returns the pipe to which a rank writes its pid (one pid_t), the id of its group, before exec.
  int registration_fd() const { return pipe_.get(); }
  /// Ends the watchdog without killing. Call it while the ranks' pids cannot have been reused.
  void dismiss();

 private:
  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace lockstep::launcher
