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

/// Connects to the job's key-value store (rank 0 starts it) and returns when every rank has; throws
/// as `connect` does. `place`: the rendezvous address of ranks of this host that join over shared
/// memory.
c10::intrusive_ptr<c10d::Store> join_store(
    const WorldSpec& world, const shm::RendezvousAddress& place, Milliseconds timeout);

/// Returns the numeric addresses of all hosts whose ranks have joined `store`.
std::vector<std::string> addresses_of_hosts(c10d::Store& store);

/// Returns the address of this host for other ranks of `world`: loopback if all share the host,
/// otherwise that of the route to the master.
std::string data_address(const WorldSpec& world);

}  // namespace lockstep::comm
