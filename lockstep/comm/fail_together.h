// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Runs `body`, and throws on all ranks if it failed on any.
///
/// Every rank throws ConfigError `[where] what on rank 1: <the error there>`, of the first rank
/// that failed. In a group of one the exception of `body` propagates unchanged. Collective; `body`
/// must not communicate. Cost without a failure: one all-reduce of a byte.
void fail_together(
    Group& ranks, const char* where, const char* what, const std::function<void()>& body);

}  // namespace lockstep
