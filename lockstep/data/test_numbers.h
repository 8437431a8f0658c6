// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace lockstep::data {

/// A dataset whose sample i is the number i; a batch lists its samples. Counts the batches read.
struct Numbers {
  using Batch = std::vector<int64_t>;

  explicit Numbers(int64_t samples) : count(samples) {}
  int64_t size() const { return count; }
  Batch get_batch(std::span<const int64_t> indices) const {
    ++*batches_read;
    if (std::find(indices.begin(), indices.end(), broken) != indices.end()) {
      throw std::domain_error("broken sample");
    }
    return {indices.begin(), indices.end()};
  }

  int64_t count;
  int64_t broken = -1;
  std::shared_ptr<std::atomic<int>> batches_read = std::make_shared<std::atomic<int>>(0);
};

}  // namespace lockstep::data
