// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::launcher {

/// Returns this machine's name.
std::string host_name();

/// Returns whether `name`, possibly with `user@` before it, means this machine: localhost, its
/// short or full name, or an address of one of its interfaces. Asks no name server, so an alias
/// that only a name server resolves is not recognised.
bool is_this_host(const std::string& name);

}  // namespace lockstep::launcher
