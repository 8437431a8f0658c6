// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Runs `body` on `size` threads, each a rank of one group, for tests without ports or processes.
///
/// Blocks until all ranks have ended. Throws the error of the rank that failed first; the others,
/// which would wait for it forever, end with a CommError. `body` may only throw std::exception.
/// Modelled on gloo's `spawn`.
void ranks(
    int size,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

}  // namespace lockstep
