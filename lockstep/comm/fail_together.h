// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Runs `body`, which may fail on some ranks alone, and throws on all ranks if it failed on any.
///
/// ConfigError on every rank: `[where] what on rank 1: <what body threw there>`, of the first rank
/// that failed. In a group of one, what `body` throws is thrown as it is. Collective; `body` must
/// not communicate. Cost without a failure: one all-reduce of a byte.
void fail_together(
    Group& ranks, const char* where, const char* what, const std::function<void()>& body);

}  // namespace lockstep
