// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>

namespace lockstep::launcher {

/// The process that holds a socket.
struct SocketOwner {
  pid_t pid = 0;
  std::string name;  ///< Its program's name, as in ps.
};

/// Returns the process that has bound TCP port `port` of any address of this machine. Nothing if
/// there is none or it is hidden: of another user, or in another container. Scans /proc once: for
/// error messages.
std::optional<SocketOwner> owner_of_port(int port);

/// Returns the process that has bound the abstract Unix socket of that name.
std::optional<SocketOwner> owner_of_name(const std::string& name);

}  // namespace lockstep::launcher
