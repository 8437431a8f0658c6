// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/shm/segment.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm::shm {

/// Holds the rendezvous address of the ranks of one host.
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
/// user: processes of other users are rejected. It resolves no name; c10d's store resolves one for
/// every connection, which costs seconds with a resolver that does not answer.
///
/// Throws the same error on every rank:
/// - ConfigError if another job uses the address;
/// - CommError if ranks are missing (names them), two processes claim one rank, the ranks' world
///   sizes or `comm` differ, or a rank has died;
/// - Error if all ranks have joined, but get no shared memory.
std::shared_ptr<Segment> rendezvous(const RendezvousAddress& address, Milliseconds timeout);

}  // namespace lockstep::comm::shm
