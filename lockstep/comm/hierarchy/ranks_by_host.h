// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/host/world.h"

namespace lockstep::comm {

/// Holds the location that a rank reports to the others; sent as four int64.
struct RankLocation {
  /// Equal if and only if processes can share memory with each other.
  uint64_t machine = 0;
  /// A random number, unique to the job: the rendezvous address of the ranks of a host.
  uint64_t token = 0;
  int64_t local_rank = 0;
  int64_t local_size = 1;

  /// Returns this process's location. `machine` is derived from the kernel's boot id, host name,
  /// and network and process namespaces, since launchers' host names are often missing or
  /// inconsistent.
  static RankLocation of(const WorldSpec& world);
};
static_assert(sizeof(RankLocation) == 32, "sent as four int64");

/// Assigns ranks to hosts.
///
/// Hosts are in order of their first ranks, and each host's ranks are in ascending order. Several
/// hosts may be one machine, if two launchers run on it.
class RanksByHost {
 public:
  /// Takes the ranks of each host. No host may be empty.
  explicit RanksByHost(std::vector<std::vector<int>> hosts);

  /// Derives the hosts from all ranks' locations, in rank order. On one machine the first ranks
  /// with local rank 0, 1, ... are a host, the second ones another, and so on. Ranks need not be
  /// numbered host by host. Throws Error if a host has fewer ranks than reported.
  static RanksByHost of(const std::vector<RankLocation>& by_rank);

  int hosts() const { return static_cast<int>(hosts_.size()); }
  const std::vector<int>& ranks_of(int host) const { return hosts_[static_cast<size_t>(host)]; }
  int largest() const { return largest_; }
  /// Returns whether all hosts have the same number of ranks.
  bool equal() const { return equal_; }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  /// Returns the index of `rank` among the ranks of its host.
  int index_of(int rank) const { return index_of_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(host_of_.size()); }

 private:
  std::vector<std::vector<int>> hosts_;
  std::vector<int> host_of_, index_of_;
  int largest_ = 0;
  bool equal_ = true;
};

}  // namespace lockstep::comm
