// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::comm {

/// A rank's arguments of a split; see Transport::split.
struct SplitChoice {
  int64_t color = 0;
  int64_t key = 0;
};

/// Returns the ranks that chose `color`, in their order in the subgroup.
inline std::vector<int> members_of(const std::vector<SplitChoice>& by_rank, int64_t color) {
  std::vector<int> members;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].color == color) {
      members.push_back(static_cast<int>(rank));
    }
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return by_rank[static_cast<size_t>(a)].key < by_rank[static_cast<size_t>(b)].key;
  });
  return members;
}

/// Returns the index of `rank` in `members`, which must contain it.
inline int place_of(const std::vector<int>& members, int rank) {
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}

}  // namespace lockstep::comm
