// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "lockstep/base/host/address.h"
#include "lockstep/base/host/world.h"

namespace lockstep::comm {

/// Chooses the address of rank 0's store: one address of this machine, never the wildcard.
///
/// It is the first of:
/// - loopback, if all ranks share the host, or master_addr is "localhost" or "127.0.0.1";
/// - an address of this machine that master_addr resolves to and other hosts reach;
/// - LOCKSTEP_HOST_ADDR;
/// - with a warning, the loopback address that master_addr resolves to (Debian's 127.0.1.1).
///
/// An unknown name is looked up again until `deadline`, since pods start before their names
/// resolve. Throws ConfigError if none of these addresses belongs to this machine.
Address store_address(const WorldSpec& world, std::chrono::steady_clock::time_point deadline);

/// Opens a listening socket for the store, which the caller owns. Throws ConfigError if the port is
/// taken.
int bind_store_port(const Address& address, int port);

}  // namespace lockstep::comm
