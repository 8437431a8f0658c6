// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/shm/segment.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm::shm {

/// Where ranks of one host find each other.
struct RendezvousAddress {
  /// Known to all of them; free again once they have met.
  std::string name;
  int rank = 0;
  int size = 1;
  int local_size = 0;         ///< Ranks of this host, as this rank was told.
  std::string comm = "auto";  ///< LOCKSTEP_COMM, which all ranks must set alike.
  /// MASTER_ADDR. Ranks that meet may spell it differently; who joins over Gloo is of another job,
  /// on several hosts it may be, unless it spells it the same.
  std::string master_addr{};
};

/// Meets the others and returns the memory that all of them map, made by rank 0. Collective.
///
/// Over a socket that exists in the kernel only and passes the memory on as an open file. Each end
/// has the kernel's word that the other is a process of the same user: others are turned away, and
/// disturb nobody. No name is looked up in the network, where a resolver that does not answer costs
/// seconds (c10d's store asks one for every connection).
///
/// Throws on every rank alike, naming what is wrong. ConfigError: another job meets there.
/// CommError: ranks are missing (names them), two processes claim one rank, worlds of different
/// size meet, the ranks' `comm` differ, one died on the way. Error: the ranks are there, but this
/// host gives them no shared memory.
std::shared_ptr<Segment> meet(const RendezvousAddress& place, Milliseconds timeout);

// Ranks that join over Gloo meet at the store. They use a meeting place only to find out whether a
// rank of their host joins otherwise. Jobs with another MASTER_ADDR are not disturbed.

/// Rank 0's end of that: answers the ranks that look for it at `place`.
///
/// Thread safety: one thread at a time.
class JoinResponder {
 public:
  /// Answers nobody if another rank 0 does it already.
  explicit JoinResponder(const RendezvousAddress& place);
  /// Answers all who wait, at most 0.1 s each. Returns what one of them disagrees on; empty if they
  /// agree, or nobody waits.
  std::string answer();

 private:
  RendezvousAddress place_;
  UniqueFd listener_;
};

/// The other ranks' end: asks rank 0, if it waits at `place` over shared memory. Returns what the
/// two disagree on; empty if it is not there, is another job's or has not answered within 2 s.
std::string ask_rank_0(const RendezvousAddress& place);

}  // namespace lockstep::comm::shm
