// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {

/// Distributes work evenly over writers, in the same way on every rank that makes the same calls in
/// the same order.
class EvenShares {
 public:
  /// A half-open range of the distributed bytes.
  using Range = std::pair<int64_t, int64_t>;

  /// Less than `least_bytes` at once is not divided: writer 0 gets it.
  explicit EvenShares(size_t writers, int64_t least_bytes = int64_t{16} << 20);

  /// Adds bytes that `writer` must write in any case.
  void claim(size_t writer, int64_t bytes);
  /// Divides `bytes` into a contiguous range for each writer, in order, so that the loads become as
  /// equal as possible.
  std::vector<Range> divide(int64_t bytes);

 private:
  std::vector<int64_t> loads_;
  int64_t least_bytes_;
};

}  // namespace lockstep::checkpoint
