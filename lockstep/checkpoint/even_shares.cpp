// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/even_shares.h"

#include <algorithm>

namespace lockstep::checkpoint {

EvenShares::EvenShares(size_t writers, int64_t least_bytes)
    : loads_(std::max<size_t>(writers, 1), 0), least_bytes_(least_bytes) {}

void EvenShares::claim(size_t writer, int64_t bytes) {
  loads_.at(writer) += bytes;
}

std::vector<EvenShares::Range> EvenShares::divide(int64_t bytes) {
  std::vector<Range> ranges(loads_.size(), {0, 0});
  if (loads_.size() == 1 || bytes < least_bytes_) {
    loads_[0] += bytes;
    ranges[0] = {0, bytes};
    for (size_t i = 1; i < ranges.size(); ++i) {
      ranges[i] = {bytes, bytes};
    }
    return ranges;
  }
  // The common load up to which the least loaded writers are filled.
  std::vector<int64_t> sorted = loads_;
  std::sort(sorted.begin(), sorted.end());
  int64_t level = 0;
  int64_t below = 0;
  for (size_t filled = 1; filled <= sorted.size(); ++filled) {
    below += sorted[filled - 1];
    const auto writers = static_cast<int64_t>(filled);
    level = (bytes + below + writers - 1) / writers;
    if (filled == sorted.size() || level <= sorted[filled]) {
      break;
    }
  }
  int64_t begin = 0;
  for (size_t i = 0; i < loads_.size(); ++i) {
    const int64_t end = std::min(bytes, begin + std::max<int64_t>(0, level - loads_[i]));
    ranges[i] = {begin, end};
    begin = end;
  }
  for (size_t i = 0; i < loads_.size(); ++i) {
    loads_[i] += ranges[i].second - ranges[i].first;
  }
  return ranges;
}

}  // namespace lockstep::checkpoint
