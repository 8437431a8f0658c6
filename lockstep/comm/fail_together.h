// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Returns whether `own` is true on any rank. Collective. Cost: one all-reduce of a number.
bool any_rank(Group ranks, bool own);

/// Names the first rank that failed, and its error.
struct FirstFailure {
  int rank = 0;
  std::string why;
};

/// Returns the failure of the first rank that has one, the same on all ranks; nothing if all have
/// succeeded. `own` is this rank's failure, and empty if it has succeeded. Each caller throws its
/// own kind of error for the result, the same on all ranks.
///
/// Collective. Cost: one all-reduce of a number; after a failure also an all-gather of the texts.
std::optional<FirstFailure> first_failure(Group ranks, const std::string& own);

/// Runs `body`, and returns the text of its exception without the rank; empty if it succeeds.
std::string failure_of(const std::function<void()>& body);

/// Runs `body`, and throws on all ranks if it failed on any.
///
/// Every rank throws ConfigError `[where] what on rank 1: <the error there>`, of the first rank
/// that failed. In a group of one the exception of `body` propagates unchanged. Collective; `body`
/// must not communicate. Cost: see first_failure.
void fail_together(
    Group& ranks, const char* where, const char* what, const std::function<void()>& body);

}  // namespace lockstep
