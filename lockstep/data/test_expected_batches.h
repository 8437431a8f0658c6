// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::data {

struct Layout {
  int64_t batch_size = 1;
  int world = 1;
  bool split = false;
};

/// Options that stay the same when the number of ranks changes.
struct EndOptions {
  bool even = true;
  bool drop_last = false;
};

/// A reference model of an epoch: each round takes the next samples from the top of a pile.
class ExpectedBatches {
 public:
  explicit ExpectedBatches(std::vector<int64_t> order)
      : order_(std::move(order)), left_(order_.begin(), order_.end()) {}

  /// Returns each rank's batch, empty for a rank without one; nullopt once the pass is over.
  std::optional<std::vector<std::vector<int64_t>>> deal(
      const Layout& layout, const EndOptions& ends) {
    const auto global_batch_rows =
        static_cast<size_t>(layout.batch_size * (layout.split ? 1 : layout.world));
    if (left_.empty() || (ends.drop_last && left_.size() < global_batch_rows)) {
      return std::nullopt;
    }
    std::vector<int64_t> round;
    while (round.size() < global_batch_rows && !left_.empty()) {
      round.push_back(left_.front());
      left_.pop_front();
    }
    seen_.insert(seen_.end(), round.begin(), round.end());
    if (ends.even && layout.world > 1) {
      const size_t first_round = std::min(order_.size(), global_batch_rows);
      for (size_t i = 0; round.size() < global_batch_rows; ++i) {
        round.push_back(order_[i % first_round]);
      }
    }
    std::vector<std::vector<int64_t>> batches(static_cast<size_t>(layout.world));
    for (size_t i = 0; i < round.size(); ++i) {
      batches[i / (global_batch_rows / batches.size())].push_back(round[i]);
    }
    return batches;
  }

  const std::vector<int64_t>& seen() const { return seen_; }

 private:
  std::vector<int64_t> order_;
  std::deque<int64_t> left_;
  std::vector<int64_t> seen_;
};

}  // namespace lockstep::data
