// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "lockstep/base/address.h"
#include "lockstep/base/world.h"

namespace lockstep::comm {

/// Where rank 0's store listens: one address of this machine, never all of them. It is loopback if
/// all ranks share the host, or master_addr is written so ("localhost", "127.0.0.1"); else an own
/// address of master_addr that other hosts reach; else LOCKSTEP_HOST_ADDR; else, with a warning,
/// the loopback address that master_addr means here (Debian's 127.0.1.1). ConfigError if none of
/// these is this machine's. One that nobody knows is looked up again until `deadline`: pods are
/// there before their names.
Address store_address(const WorldSpec& world, std::chrono::steady_clock::time_point deadline);

/// A listening socket for the store, which the caller owns. ConfigError if the port is taken.
int bind_store_port(const Address& address, int port);

}  // namespace lockstep::comm
