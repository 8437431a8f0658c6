// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/world.h"

namespace lockstep::comm {

/// What a rank tells the others of where it is; travels as four int64.
struct RankLocation {
  /// Equal for processes that can share memory with each other, else different.
  uint64_t machine = 0;
  /// By chance, and so of no other job: under it the ranks of a host meet.
  uint64_t token = 0;
  int64_t local_rank = 0;
  int64_t local_size = 1;

  /// Those of this process. `machine` comes from the kernel: its boot id, host name, and network
  /// and process namespaces, since launchers' names for a host are missing, or differ, too often.
  static RankLocation of(const WorldSpec& world);
};
static_assert(sizeof(RankLocation) == 32, "travels as four int64");

/// Which ranks are on which host.
///
/// Hosts are in order of their first ranks, and each host's ranks are in ascending order. Several
/// hosts in this sense may be one machine, where somebody starts two launchers on it.
class Layout {
 public:
  /// No host may be empty.
  explicit Layout(std::vector<std::vector<int>> hosts);

  /// From what all ranks say, in rank order. In one machine the first ranks that call themselves
  /// local rank 0, 1, ... are a host, the second ones another, and so on. The ranks need not be
  /// numbered host by host. Error: a host has not got as many ranks as they say.
  static Layout of(const std::vector<RankLocation>& by_rank);

  int hosts() const { return static_cast<int>(hosts_.size()); }
  const std::vector<int>& ranks_of(int host) const { return hosts_[static_cast<size_t>(host)]; }
  int largest() const { return largest_; }
  /// Whether all hosts have as many ranks.
  bool equal() const { return equal_; }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  /// The place of `rank` among its host's.
  int index_of(int rank) const { return index_of_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(host_of_.size()); }

 private:
  std::vector<std::vector<int>> hosts_;
  std::vector<int> host_of_, index_of_;
  int largest_ = 0;
  bool equal_ = true;
};

}  // namespace lockstep::comm
