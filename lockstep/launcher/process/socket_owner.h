// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>

namespace lockstep::launcher {

/// Who holds a socket.
struct SocketOwner {
  pid_t pid = 0;
  std::string name;  ///< Of its program, as ps shows it.
};

/// The process that has bound TCP port `port` of any address of this machine. Nothing if there is
/// none or it is not to be seen: of another user, or in another container. Reads /proc once
/// through: for error messages.
std::optional<SocketOwner> owner_of_port(int port);

/// The process that has bound the abstract Unix socket of that name.
std::optional<SocketOwner> owner_of_name(const std::string& name);

}  // namespace lockstep::launcher
