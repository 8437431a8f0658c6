// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/hierarchy/layout.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// What a rank of several hosts talks over.
struct HostLinks {
  std::shared_ptr<Transport> flat;   ///< To all ranks.
  std::shared_ptr<Transport> local;  ///< To those of this host, in the layout's order.
  /// To those with this rank's index on each host, in the layout's order; if hosts have different
  /// numbers of ranks, only the first ones of the hosts have it.
  std::shared_ptr<Transport> cross;
};

/// One rank's collectives over several hosts: what goes from host to host goes there once.
///
/// Before anything else all ranks learn what each is about to do. That costs three exchanges within
/// the host, which take microseconds, and its first rank one between hosts; each exchange between
/// hosts costs one more within, which tells the host's ranks whether it went well.
/// - all_reduce, equal hosts, large: each rank reduces a share within the host, then that share
///   between hosts. Else the host's first rank does all of it for the host.
/// - reduce_scatter, all_gather, equal hosts: each rank speaks to those of its index.
/// - broadcast: over one rank of each host.
/// - The others, and those two where hosts have different numbers of ranks: over `flat`.
///
/// Rounding: float16 and bfloat16 are rounded once within a host, and once for each host that is
/// added to the first. An average is divided once, by the number of ranks; that of float16 before
/// the sum over hosts, which might be too large for it.
/// Memory, kept: a share of the largest operation so far.
///
/// Failure: CommError with the operation's name and ranks as the world counts them; after that
/// nothing more may be run. Thread safety: none.
class HostCollectives {
 public:
  HostCollectives(const Layout& layout, HostLinks links);

  /// Blocks until done. `sequence`: as in Fingerprint.
  void run(const Collective& collective, int64_t sequence, Milliseconds timeout);

 private:
  using Clock = std::chrono::steady_clock;

  void agree(const Fingerprint& mine);
  void perform(const Collective& c);
  void all_reduce(const Collective& c);
  void reduce_scatter(const Collective& c);
  void all_gather(const Collective& c);
  void broadcast(const Collective& c);

  void on_host(Collective part);
  /// Runs `part`, where this rank has one, between hosts; then all ranks of the host tell each
  /// other how it went, since those that only wait for the next operation on the host would not
  /// learn of it.
  void between_hosts(std::optional<Collective> part);
  /// Runs `part` over `link`, which connects `ranks` of the world.
  void over(
      Transport& link, const char* where, const std::vector<int>& ranks, Collective part) const;

  /// The ranks of `host` within `rows`, N equal parts in rank order; a copy if they are not
  /// numbered one after the other.
  at::Tensor rows_of_host(const at::Tensor& rows, int host) const;
  bool is_consecutive(int host) const;
  /// `count` elements that live until the next call, where the host's ranks can read them.
  at::Tensor scratch(int64_t count, at::ScalarType dtype);
  bool leads() const { return index_ == 0; }
  Milliseconds left() const;

  const Layout& layout_;
  HostLinks links_;
  int host_, index_, here_;        ///< This rank's host, its place there, and how many there are.
  std::vector<int> counterparts_;  ///< The ranks of `cross`.
  at::Tensor scratch_;
  Op op_ = Op::kBarrier;  ///< That is run now.
  Clock::time_point deadline_;
};

}  // namespace lockstep::comm
