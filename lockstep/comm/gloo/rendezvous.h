// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/host/world.h"
#include "lockstep/comm/shm/rendezvous.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Connects to the job's key-value store, which rank 0 starts in its first join and serves until
/// its process ends. Blocks until all ranks have joined. A process may join again at any time.
/// `address`: the rendezvous address of ranks of this host that join over shared memory. Throws as
/// `connect`.
c10::intrusive_ptr<c10d::Store> join_store(
    const WorldSpec& world, const shm::RendezvousAddress& address, Milliseconds timeout);

/// Returns the numeric addresses of all hosts whose ranks have joined `store`.
std::vector<std::string> addresses_of_hosts(c10d::Store& store);

/// Returns the address at which other ranks of `world` reach this host. That is loopback if all
/// ranks share the host, otherwise the address of the route to the master.
std::string data_address(const WorldSpec& world);

}  // namespace lockstep::comm
