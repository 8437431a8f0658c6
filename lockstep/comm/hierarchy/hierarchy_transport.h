// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/base/host/world.h"
#include "lockstep/comm/hierarchy/ranks_by_host.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

// Connects ranks on several hosts, for CPU tensors: shared memory within a host, Gloo between
// hosts. Between hosts, each host sends as little as if it were one rank.
// hierarchy/host_collectives.h has the algorithms, costs and rounding. The transport's name is
// "shm+gloo".
//
// Collectives run on a progress thread, in order. Send and recv go over Gloo, on separate threads.
// Results are bit-exact across ranks, and across runs with the same placement of ranks; another
// placement may round sums differently. After the first failure every operation throws its reason.
// A rank whose collective has failed leaves, so that no rank waits for it. Ranks of its host notice
// within 0.2 s, other hosts when its connections close.
//
// A subgroup (split) within one host uses only shared memory, one with a rank on each host only
// Gloo.

/// Connects the ranks of `all_ranks`, which are all ranks of `world`. Returns `all_ranks` itself if
/// no host has two of them, and, with a warning, if some get no shared memory. `group`: its id in
/// the flight record. Collective. Throws CommError if a rank is lost.
std::shared_ptr<Transport> make_hierarchy_transport(
    const WorldSpec& world,
    std::shared_ptr<Transport> all_ranks,
    uint64_t group,
    Milliseconds join_timeout);

/// Connects this rank to the ranks of its host, in the order of RanksByHost. Throws Error if it
/// cannot.
using MakeLocal = std::function<std::shared_ptr<Transport>()>;

/// Connects the ranks of `all_ranks` whose hosts are known, for split and tests. `group`: its id in
/// the flight record.
std::shared_ptr<Transport> make_hierarchy_transport(
    std::shared_ptr<Transport> all_ranks,
    RanksByHost by_host,
    const MakeLocal& make_local,
    uint64_t group,
    Milliseconds timeout);

}  // namespace lockstep::comm
