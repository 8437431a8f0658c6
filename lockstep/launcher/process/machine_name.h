// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::launcher {

/// This machine's name.
std::string host_name();

/// `name`, perhaps with a user before an `@`, means this machine: localhost, its own name in short
/// or in full, or an address of one of its interfaces. Asks no name server, so an alias only a name
/// server knows is not recognised.
bool is_this_host(const std::string& name);

}  // namespace lockstep::launcher
