// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/coordinator/prefetch_trace.h"

#include "lockstep/sync/backward_hooks.h"

namespace lockstep::zero {

PrefetchTrace::History PrefetchTrace::followed_by(Index next) const {
  return {history_[1], history_[2], next, BackwardHooks::current_backward() != -1 ? 1 : 0};
}

PrefetchTrace::Index PrefetchTrace::after(Index index) const {
  const auto found = next_.find(followed_by(index));
  return found == next_.end() ? kNone : found->second;
}

void PrefetchTrace::record(Index next) {
  next_[history_] = next;
  history_ = followed_by(next);
}

void PrefetchTrace::end() {
  next_[history_] = kNone;
  restart();
}

void PrefetchTrace::forget() {
  next_.clear();
  restart();
}

}  // namespace lockstep::zero
