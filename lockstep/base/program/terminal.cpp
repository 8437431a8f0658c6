// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/program/terminal.h"

#include <sys/ioctl.h>

namespace lockstep {

std::optional<int> terminal_columns(int fd) {
  winsize size{};
  // Fails if it is not a terminal.
  const bool known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::optional<int>(size.ws_col) : std::nullopt;
}

}  // namespace lockstep
