// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

// Runs ranks as threads over the transports of processes: each thread joins through a store on a
// free loopback port. For tests only.

/// Runs the ranks over real sockets.
void gloo_ranks(
    int size,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

/// Runs the ranks over shared memory, which each rank maps separately.
void shm_ranks(
    int size,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

/// Simulates several hosts: rank r on host hosts[r]. Shared memory within each, Gloo between them.
void ranks_on_hosts(
    const std::vector<int>& hosts,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

/// Puts the first half of the ranks on one host, the others on another; of 3 ranks, 2 and 1.
void two_host_ranks(
    int size,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

}  // namespace lockstep
