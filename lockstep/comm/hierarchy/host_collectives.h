// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/hierarchy/ranks_by_host.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Holds the transports of a rank of a job on several hosts.
struct HostTransports {
  std::shared_ptr<Transport> all_ranks;  ///< To all ranks.
  std::shared_ptr<Transport> local;  ///< To the ranks of this host, in the order of RanksByHost.
  /// To the ranks with this rank's index on each host, in the order of RanksByHost; if hosts have
  /// different numbers of ranks, only the first rank of each host has it.
  std::shared_ptr<Transport> cross;
};

/// Runs one rank's collectives over several hosts. Data crosses between hosts once.
///
/// All ranks first exchange fingerprints. That costs three exchanges within the host, which take
/// microseconds, and one between hosts on its first rank. After each exchange between hosts,
/// another one within the host reports its success to the host's ranks.
/// - all_reduce of 64 KiB and more, hosts of equal size: each rank reduces a share within the host,
///   then that share between hosts. Else the host's first rank reduces everything for the host.
/// - reduce_scatter, all_gather, hosts of equal size: each rank communicates with the ranks of its
///   index.
/// - broadcast: over one rank of each host.
/// - All others: over `all_ranks`.
///
/// Rounding: float16 and bfloat16 are rounded once within a host, and once for each host that is
/// added to the first. An average is divided once, by the number of ranks. Averages of float16 are
/// divided before the sum over hosts, which might overflow. Memory: keeps a share of the largest
/// operation so far.
///
/// Throws CommError with the operation's name and world ranks; no operation may follow.
class HostCollectives {
 public:
  HostCollectives(const RanksByHost& by_host, HostTransports transports);

  /// Blocks until done. `sequence`: as in Fingerprint.
  void run(const Collective& collective, int64_t sequence, Milliseconds timeout);

 private:
  using Clock = std::chrono::steady_clock;

  /// Returns the fingerprints of all ranks, in rank order.
  std::vector<Fingerprint> exchange_fingerprints(const Fingerprint& mine);
  void perform(const Collective& c);
  void all_reduce(const Collective& c);
  void reduce_scatter(const Collective& c);
  void all_gather(const Collective& c);
  void broadcast(const Collective& c);

  void on_host(Collective part);
  /// Runs `part`, if this rank has one, between hosts. Then all ranks of the host exchange its
  /// success, since ranks that only wait for the next operation on the host would not notice a
  /// failure.
  void between_hosts(std::optional<Collective> part);
  /// Runs `part` over `transport`, which connects world ranks `ranks`.
  void over(Transport& transport, const char* where, const std::vector<int>& ranks, Collective part)
      const;

  /// Returns the rows of `host`'s ranks within `rows`; a copy if they are not consecutive. `rows`
  /// has N equal parts in rank order.
  at::Tensor rows_of_host(const at::Tensor& rows, int host) const;
  bool is_consecutive(int host) const;
  /// Returns `count` elements, readable by the host's ranks, valid until the next call.
  at::Tensor scratch(int64_t count, at::ScalarType dtype);
  bool is_first_of_host() const { return index_ == 0; }
  Milliseconds remaining() const;

  const RanksByHost& by_host_;
  HostTransports transports_;
  int host_, index_;               ///< This rank's host, and its index there.
  int host_size_;                  ///< Ranks of this host.
  std::vector<int> counterparts_;  ///< The ranks of `cross`.
  at::Tensor scratch_;
  Op op_ = Op::kBarrier;  ///< The running operation.
  Clock::time_point deadline_;
};

}  // namespace lockstep::comm
