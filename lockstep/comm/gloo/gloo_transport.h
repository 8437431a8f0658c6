// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/base/world.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// Ranks that are processes, over TCP through c10d's Gloo backend, for tensors on the CPU.
///
/// Each operation runs on a progress thread: first an all-gather of fingerprints, then, if the
/// ranks agree, the operation. Send and recv have threads of their own, so that two ranks may send
/// to each other before they receive. After the first failure the group is dead and says why.
/// Throws as `connect` does.
std::shared_ptr<Transport> make_gloo_transport(const WorldSpec& world, Milliseconds join_timeout);

}  // namespace lockstep::comm
