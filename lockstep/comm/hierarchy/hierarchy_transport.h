// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/base/world.h"
#include "lockstep/comm/hierarchy/layout.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// Ranks on several hosts, for tensors on the CPU: over memory that they share within a host, and
/// over Gloo between hosts, where each host sends as little as if it were one rank (see
/// hierarchy/host_collectives.h for how, what it costs, and how sums are rounded). Its name is
/// "shm+gloo".
///
/// Collectives run on a progress thread, in order. Send and recv go over Gloo, on threads of their
/// own. All ranks get the same bits, and in every run with the same placement of ranks; another
/// placement may round sums otherwise. After the first failure the group is dead and says why. A
/// rank whose collective has failed leaves, so that no rank, wherever it is, waits for it: those of
/// its host learn of its end within 0.2 s, those of other hosts when its connections close.
///
/// Parts of one host (split) are shared memory alone, parts with one rank a host are Gloo alone.

/// As the ranks of `flat`, which are all of `world`; `flat` itself where no host has two of them,
/// and, with a warning, where they do not all get their share of shared memory. Collective.
/// CommError: a rank was lost.
std::shared_ptr<Transport> over_hosts(
    const WorldSpec& world, std::shared_ptr<Transport> flat, Milliseconds join_timeout);

/// This rank's way to those of its host, as they stand in the layout. Error alone means: none.
using MakeLocal = std::function<std::shared_ptr<Transport>()>;

/// The same, with what is found out there. `group`: for the flight record. For split, and tests.
std::shared_ptr<Transport> over_hosts(
    std::shared_ptr<Transport> flat,
    Layout layout,
    const MakeLocal& make_local,
    uint64_t group,
    Milliseconds timeout);

}  // namespace lockstep::comm
