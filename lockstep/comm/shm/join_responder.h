// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/shm/join_message.h"
#include "lockstep/comm/shm/rendezvous.h"

namespace lockstep::comm::shm {

// Ranks that join over Gloo use the store. They use the rendezvous address only to find ranks of
// their host that join over shared memory. Jobs with another MASTER_ADDR are not disturbed.

/// Answers for a rank 0 that joins over Gloo: to ranks of this host that join over shared memory.
///
class JoinResponder {
 public:
  /// Starts to listen. Answers no requests if another rank 0 already does.
  explicit JoinResponder(const RendezvousAddress& address);
  /// Answers all waiting requests, at most 0.1 s each. Returns a mismatch with one of the ranks;
  /// empty if all match, or none waits.
  std::string answer();

 private:
  RendezvousAddress address_;
  UniqueFd listener_;
};

/// Asks a rank 0 that waits at `address` over shared memory, for a rank that joins over Gloo.
/// Returns their mismatch; empty if rank 0 is absent, of another job, or does not answer within 2
/// s.
std::string ask_shm_rank_0(const RendezvousAddress& address);

/// Asks a rank 0 that joins over Gloo, for a rank that joins over shared memory. Returns the same.
std::string ask_gloo_rank_0(const RendezvousAddress& address);

}  // namespace lockstep::comm::shm
