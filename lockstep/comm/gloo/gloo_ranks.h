// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/comm/group.h"

namespace lockstep {

/// `ranks` over real sockets: each thread joins by a store on a free loopback port, as processes
/// would. For tests only.
void gloo_ranks(
    int size,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

}  // namespace lockstep
