// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::launcher {

/// Opens /dev/null in place of closed standard streams, so that no pipe of this process gets their
/// numbers.
void open_standard_streams();

/// Returns the arguments that execve takes; valid as long as `words`.
std::vector<char*> pointers_to(const std::vector<std::string>& words);

/// Describes a process to start.
struct ChildSpec {
  const Program* program = nullptr;      ///< Not null.
  std::vector<std::string> environment;  ///< NAME=value.
  int stdin_fd = 0;                      ///< The process's stdin.
  int registration_fd = -1;              ///< The watchdog's; -1 for none.
  std::vector<int> cores{};              ///< Its cores; empty: the launcher's.
};

/// A started process.
struct Child {
  pid_t pid = -1;  ///< Also the id of its process group.
  UniqueFd pidfd;  ///< Readable once it has ended.
  UniqueFd out;    ///< Its stdout; non-blocking.
  UniqueFd err;    ///< Its stderr; non-blocking.
};

/// Starts `spec.program`; returns after exec has succeeded.
///
/// The child leads its own process group, is killed if this thread ends, has default signal
/// handlers (an ignored SIGHUP stays ignored: nohup), and inherits only its standard streams. A
/// file without a `#!` line is run by /bin/sh, as a shell does. The caller must reap the child.
///
/// Throws ConfigError if the program cannot be executed, Error if no process or descriptor is
/// available; `name` ("rank 1 of 2") is that of the process in the message.
Child start_child(const ChildSpec& spec, const std::string& name);

}  // namespace lockstep::launcher
