// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Runs `body` on `size` threads, each a rank of one group: the way unit tests have several ranks
/// without ports or processes. Returns when all have ended; the error of the rank that failed first
/// is thrown, and the others, which would wait for it for ever, are ended with a CommError. `body`
/// must not throw anything but std::exception. After gloo's `spawn`.
void ranks(
    int size,
    const std::function<void(Group group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(60));

}  // namespace lockstep
