// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/slow_rank.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace lockstep::watch {
namespace {

constexpr size_t kFewest = 20;
constexpr double kLastOf = 0.8;  // Share of the operations, since any rank is last sometimes.
constexpr double kWaitingAtLeast = 0.2;
// With shared memory, dozens of operations may fit into one delay by the kernel's scheduler.
constexpr int64_t kWaitedAtLeastNs = 100'000'000;

/// The time at which each rank issued an operation, and the rank.
using Arrivals = std::vector<std::pair<int64_t, int>>;

/// Sums up the operations that one rank issued last.
struct LastArrivals {
  size_t times = 0;
  int64_t waited_ns = 0;  ///< Time that the others waited; overlapping waits count once.
  int64_t counted_until_ns = 0;

  /// Adds a wait of the others from `from_ns` until `until_ns`. Call it in the operations' order.
  void add(int64_t from_ns, int64_t until_ns) {
    ++times;
    waited_ns += std::max<int64_t>(0, until_ns - std::max(from_ns, counted_until_ns));
    counted_until_ns = std::max(counted_until_ns, until_ns);
  }
};

/// Returns the arrivals at those operations of the job's group that all ranks still have recorded.
std::vector<Arrivals> common_arrivals(const std::vector<RankView>& ranks) {
  std::map<int64_t, Arrivals> by_sequence;
  for (const RankView& view : ranks) {
    for (const Operation& operation : view.record.operations) {
      if (operation.group == Operation::kWorld && operation.sequence >= 0) {
        by_sequence[operation.sequence].emplace_back(operation.issued_ns, view.rank);
      }
    }
  }
  std::vector<Arrivals> common;
  for (auto& [sequence, arrivals] : by_sequence) {
    if (arrivals.size() == ranks.size()) {
      std::sort(arrivals.begin(), arrivals.end());
      common.push_back(std::move(arrivals));
    }
  }
  return common;
}

bool on_one_host(const std::vector<RankView>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [&ranks](const RankView& view) {
    return view.host == ranks.front().host;
  });
}

/// Finds the slow rank without comparing clocks of different hosts.
std::optional<SlowRank> slow_by_own_clocks(std::vector<RankView> ranks) {
  const bool known = std::all_of(
      ranks.begin(), ranks.end(), [](const auto& view) { return view.in_operations.has_value(); });
  if (!known) {
    return std::nullopt;
  }
  std::sort(ranks.begin(), ranks.end(), [](const RankView& a, const RankView& b) {
    return *a.in_operations < *b.in_operations;
  });
  const RankView& slow = ranks[0];
  const double others = *ranks[1].in_operations;
  if (others - *slow.in_operations < kWaitingAtLeast) {
    return std::nullopt;
  }
  return SlowRank{
      slow.rank,
      fmt::format(
          "rank {0} on {1} is slow: the other ranks spend at least {2:.0f} % of their time in "
          "operations, where they wait for it; rank {0} itself spends {3:.0f} % in operations",
          slow.rank,
          slow.host,
          others * 100,
          *slow.in_operations * 100)};
}

}  // namespace

std::optional<double> share_in_operations(const FlightRecord& record) {
  size_t count = 0;
  int64_t first = 0;
  int64_t last = 0;
  int64_t inside = 0;
  for (const Operation& operation : record.operations) {
    if (operation.group != Operation::kWorld || operation.stage != Stage::kDone) {
      continue;
    }
    first = count++ == 0 ? operation.issued_ns : first;
    // Overlapping operations count once.
    inside += std::max<int64_t>(0, operation.ended_ns - std::max(operation.issued_ns, last));
    last = std::max(last, operation.ended_ns);
  }
  if (count < kFewest || last <= first) {
    return std::nullopt;
  }
  return static_cast<double>(inside) / static_cast<double>(last - first);
}

std::optional<SlowRank> find_slow_rank(const std::vector<RankView>& ranks) {
  if (ranks.size() < 2) {
    return std::nullopt;
  }
  const std::vector<Arrivals> operations =
      on_one_host(ranks) ? common_arrivals(ranks) : std::vector<Arrivals>();
  if (operations.size() < kFewest) {
    return slow_by_own_clocks(ranks);
  }
  std::map<int, LastArrivals> last;
  for (const Arrivals& arrivals : operations) {
    last[arrivals.back().second].add(arrivals[arrivals.size() - 2].first, arrivals.back().first);
  }
  const auto span = static_cast<double>(operations.back().back().first - operations[0][0].first);
  for (const auto& [rank, sums] : last) {
    const double waiting = span > 0 ? static_cast<double>(sums.waited_ns) / span : 0;
    const auto count = static_cast<double>(operations.size());
    if (static_cast<double>(sums.times) >= kLastOf * count && waiting >= kWaitingAtLeast &&
        sums.waited_ns >= kWaitedAtLeastNs) {
      return SlowRank{
          rank,
          fmt::format(
              "rank {} is slow: it was last in {} of the last {} operations, and the other ranks "
              "waited for it for {:.0f} % of {:.1f} s",
              rank,
              sums.times,
              operations.size(),
              waiting * 100,
              span / 1e9)};
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::watch
