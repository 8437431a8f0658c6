// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {

/// Deals work out to writers so that all have about equally much to write, the same on every rank
/// that asks the same in the same order. Thread safety: none.
class EvenShares {
 public:
  /// A half-open range of the bytes that were dealt out.
  using Range = std::pair<int64_t, int64_t>;

  /// Less than `least_bytes` in one go is not worth cutting: writer 0 gets it.
  explicit EvenShares(size_t writers, int64_t least_bytes = int64_t{16} << 20);

  /// Says that `writer` has so many bytes to write anyway.
  void claim(size_t writer, int64_t bytes);
  /// Cuts `bytes` into a contiguous range for each writer, in order: what levels their loads, as
  /// far as that goes.
  std::vector<Range> deal(int64_t bytes);

 private:
  std::vector<int64_t> loads_;
  int64_t least_bytes_;
};

}  // namespace lockstep::checkpoint
