// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/shm/segment.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm::shm {

/// The rendezvous address of the ranks of one host.
struct RendezvousAddress {
  std::string name;  ///< Name of the socket, equal on all ranks; free again after the rendezvous.
  int rank = 0;
  int size = 1;
  int local_size = 0;         ///< Ranks of this host.
  std::string comm = "auto";  ///< LOCKSTEP_COMM, which must be equal on all ranks.
  /// MASTER_ADDR. Ranks over shared memory may spell it differently. A rank over Gloo with another
  /// spelling belongs to another job, possibly on several hosts.
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
std::shared_ptr<Segment> rendezvous(const RendezvousAddress& address, Milliseconds timeout);

}  // namespace lockstep::comm::shm
