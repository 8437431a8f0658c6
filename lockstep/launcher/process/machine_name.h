// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::launcher {

/// Returns this machine's name.
std::string host_name();

/// Returns whether `name`, possibly with `user@` before it, means this machine. It does if it is
/// localhost, the short or full name, or an address of an interface. Asks no name server, so an
/// alias that only a name server resolves is not recognised.
bool is_this_host(const std::string& name);

}  // namespace lockstep::launcher
