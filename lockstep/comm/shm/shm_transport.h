// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/host/world.h"
#include "lockstep/comm/shm/rendezvous.h"
#include "lockstep/comm/shm/segment.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

// Connects the ranks of one host over shared memory, for CPU tensors.
//
// An operation progresses when its rank calls the transport, and otherwise every 2 ms; see
// shm/progress_engine.h. A lost rank ends every wait of the others within 0.2 s. Memory: 2 MiB per
// rank, and 256 KiB for each pair of ranks that send and recv. Results are bit-identical on all
// ranks and in all runs: reductions are in rank order. Speed: docs/benchmarks.md.

/// Returns the rendezvous address of the ranks of `world` on this host.
///
/// Its name contains the user, the job's port, which no other job of this host has, and the number
/// of restarts. `comm`: LOCKSTEP_COMM.
shm::RendezvousAddress rendezvous_address_of(const WorldSpec& world, const std::string& comm);

/// Connects the ranks at `address`. `group`: its id in the flight record. Collective. Throws as
/// shm::rendezvous; after an Error the ranks may use another transport.
std::shared_ptr<Transport> make_shm_transport(
    const shm::RendezvousAddress& address, uint64_t group, Milliseconds join_timeout);

/// Creates `size` transports of ranks that are threads of this process. For tests.
std::vector<std::shared_ptr<Transport>> make_shm_thread_transports(shm::SegmentSizes sizes);

}  // namespace lockstep::comm
