// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::launcher {

/// Opens /dev/null in place of those of stdin, stdout and stderr that are closed, so that no pipe
/// of ours takes their number.
void open_standard_streams();

/// One process to start.
struct ChildSpec {
  const Program* program = nullptr;      ///< Not null.
  std::vector<std::string> environment;  ///< NAME=value.
  int stdin_fd = 0;                      ///< Becomes its stdin.
  int registration_fd = -1;              ///< The watchdog's; -1 for none.
  std::vector<int> cores{};              ///< Those it may run on; empty: ours.
};

/// A process that was started: its program runs.
struct Child {
  pid_t pid = -1;  ///< Also the id of its process group.
  UniqueFd pidfd;  ///< Readable once it has ended.
  UniqueFd out;    ///< What it writes to stdout; never blocks.
  UniqueFd err;    ///< What it writes to stderr; never blocks.
};

/// Starts `spec.program` and returns when it has been executed.
///
/// The child leads a process group of its own, is killed if this thread ends, has every signal at
/// its default (an ignored SIGHUP stays ignored: nohup), and inherits no descriptor of ours but its
/// standard streams. A file without a `#!` line is given to /bin/sh, as a shell does. The child is
/// not reaped here or by anyone else; that is the caller's.
///
/// ConfigError if the program cannot be executed, Error if there is no process or descriptor to be
/// had; `who` ("rank 1 of 2") says in it which one was meant.
Child start_child(const ChildSpec& spec, const std::string& who);

}  // namespace lockstep::launcher
