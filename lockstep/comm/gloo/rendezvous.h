// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/world.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// Reaches the job's key-value store (rank 0 starts it) and returns when every rank has; throws as
/// `connect` does.
c10::intrusive_ptr<c10d::Store> join_store(const WorldSpec& world, Milliseconds timeout);

/// The address of this host that others of `world` can reach: loopback when all share the host,
/// otherwise the one on the way to the master.
std::string data_address(const WorldSpec& world);

}  // namespace lockstep::comm
