// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

// `ranks` over what processes use: each thread joins by a store on a free loopback port, as a
// process would. For tests only.

/// Over real sockets.
void gloo_ranks(
    int size,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

/// Over shared memory, which each rank maps for itself.
void shm_ranks(
    int size,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

/// As on several hosts: rank r on host hosts[r]. Shared memory within each, Gloo between them.
void ranks_on_hosts(
    const std::vector<int>& hosts,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

/// The first half of the ranks on one host, the others on another; of 3 ranks, 2 and 1.
void two_host_ranks(
    int size,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

}  // namespace lockstep
