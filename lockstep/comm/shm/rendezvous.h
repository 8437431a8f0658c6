// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/shm/segment.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm::shm {

/// The rendezvous address of the ranks of one host.
struct RendezvousAddress {
  /// Known to all of them; free again after the rendezvous.
  std::string name;
  int rank = 0;
  int size = 1;
  int local_size = 0;         ///< Ranks of this host.
  std::string comm = "auto";  ///< LOCKSTEP_COMM, which must be equal on all ranks.
  /// MASTER_ADDR. Ranks over shared memory may spell it differently; a rank over Gloo with another
  /// spelling is of another job, possibly on several hosts.
  std::string master_addr{};
};

/// Connects the ranks and returns the shared memory that rank 0 creates. Collective.
///
/// It uses an abstract socket that passes the memory as an open file. The kernel reports the peer's
/// user: processes of other users are rejected. No name is resolved, which costs seconds with a
/// resolver that does not answer (c10d's store resolves one for every connection).
///
/// Throws the same error on every rank. ConfigError: another job uses the address. CommError: ranks
/// are missing (names them), two processes claim one rank, worlds of different size connect, the
/// ranks' `comm` differ, a rank died. Error: the ranks are complete, but this host gives them no
/// shared memory.
std::shared_ptr<Segment> meet(const RendezvousAddress& place, Milliseconds timeout);

// Ranks that join over Gloo use the store. They use this address only to find out whether a rank of
// their host joins over shared memory. Jobs with another MASTER_ADDR are not disturbed.

/// Rank 0's side: answers ranks that look for it at `place`.
///
/// Not thread-safe.
class JoinResponder {
 public:
  /// Answers no requests if another rank 0 already does.
  explicit JoinResponder(const RendezvousAddress& place);
  /// Answers all waiting requests, at most 0.1 s each. Returns a disagreement with one of them;
  /// empty if they agree, or none waits.
  std::string answer();

 private:
  RendezvousAddress place_;
  UniqueFd listener_;
};

/// The other ranks' side: asks rank 0, if it waits at `place` over shared memory. Returns their
/// disagreement; empty if it is absent, of another job, or does not answer within 2 s.
std::string ask_rank_0(const RendezvousAddress& place);

}  // namespace lockstep::comm::shm
