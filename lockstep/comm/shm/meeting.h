// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/shm/segment.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm::shm {

/// Where ranks of one host find each other.
struct MeetingPlace {
  /// Known to all of them; free again once they have met.
  std::string name;
  int rank = 0;
  int size = 1;
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
/// size meet, one died on the way. Error: the ranks are there, but this host gives them no shared
/// memory.
std::shared_ptr<Segment> meet(const MeetingPlace& place, Milliseconds timeout);

}  // namespace lockstep::comm::shm
