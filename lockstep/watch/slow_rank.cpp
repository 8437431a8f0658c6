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
constexpr double kLastOf = 0.8;  // Of the operations: chance makes everybody last at times.
constexpr double kWaitingAtLeast = 0.2;

/// When each rank came to an operation, and which rank.
using Arrivals = std::vector<std::pair<int64_t, int>>;

/// Of those operations of the job's own group that all ranks still remember.
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

}  // namespace

std::optional<SlowRank> find_slow_rank(const std::vector<RankView>& ranks) {
  if (ranks.size() < 2) {
    return std::nullopt;
  }
  const std::vector<Arrivals> operations = common_arrivals(ranks);
  if (operations.size() < kFewest) {
    return std::nullopt;
  }
  std::map<int, std::pair<size_t, int64_t>> last;  // How often, and how long after the one before.
  for (const Arrivals& arrivals : operations) {
    auto& [times, waited_ns] = last[arrivals.back().second];
    ++times;
    waited_ns += arrivals.back().first - arrivals[arrivals.size() - 2].first;
  }
  const auto span = static_cast<double>(operations.back().back().first - operations[0][0].first);
  for (const auto& [rank, sums] : last) {
    const auto& [times, waited_ns] = sums;
    const double waiting = span > 0 ? static_cast<double>(waited_ns) / span : 0;
    const auto count = static_cast<double>(operations.size());
    if (static_cast<double>(times) >= kLastOf * count && waiting >= kWaitingAtLeast) {
      return SlowRank{
          rank,
          waiting,
          fmt::format(
              "rank {} is slow: it came last to {} of the last {} operations, and the others spent "
              "{:.0f} % of {:.1f} s waiting for it",
              rank,
              times,
              operations.size(),
              waiting * 100,
              span / 1e9)};
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::watch
