// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/world.h"
#include "lockstep/comm/shm/rendezvous.h"
#include "lockstep/comm/shm/segment.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// The ranks of one host over memory that all of them map, for tensors on the CPU.
///
/// An operation goes on when its rank calls into the transport, and else every 2 ms; see
/// shm/engine.h. A rank that dies ends every wait of the others within 0.2 s. Memory: 2 MiB a rank,
/// and 256 KiB for each pair of ranks that send and recv. The same bits on every rank and in every
/// run: reductions are in rank order. How fast: docs/benchmarks.md.

/// Where the ranks of `world` that share this host find each other. Its name holds the user, the
/// port of the job, which no other job of this host has, and the number of restarts. `comm`:
/// LOCKSTEP_COMM.
shm::RendezvousAddress rendezvous_address_of(const WorldSpec& world, const std::string& comm);

/// The ranks that meet at `place`; `group` is what the flight record calls them. Collective. Throws
/// as shm/meeting.h says: Error alone means that the ranks may use something else.
std::shared_ptr<Transport> make_shm_transport(
    const shm::RendezvousAddress& place, uint64_t group, Milliseconds join_timeout);

/// `size` transports of ranks that are threads of this process. For tests.
std::vector<std::shared_ptr<Transport>> make_shm_thread_transports(shm::SegmentSizes sizes);

}  // namespace lockstep::comm
