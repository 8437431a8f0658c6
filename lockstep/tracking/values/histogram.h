// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::tracking {

/// Summarizes numbers by their counts in buckets.
struct Histogram {
  int64_t count = 0;  ///< Finite numbers; the next four members are about them.
  double min = 0;
  double max = 0;
  double sum = 0;
  double sum_of_squares = 0;
  int64_t non_finite = 0;       ///< NaN and infinities, which are in no bucket.
  std::vector<double> edges;    ///< Bucket i is [edges[i], edges[i + 1]), the last one closed.
  std::vector<int64_t> counts;  ///< One for each bucket; empty without finite numbers.
};

/// Counts `values` in `buckets` (at least 1) buckets of equal width from the smallest to the
/// largest finite value; in one bucket if they are equal. Costs two passes over the values.
Histogram histogram_of(std::span<const double> values, int64_t buckets = 64);

}  // namespace lockstep::tracking
