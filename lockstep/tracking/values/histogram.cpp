// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/values/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep::tracking {
namespace {

/// Fills all members but edges and counts.
Histogram summary_of(std::span<const double> values) {
  Histogram summary;
  summary.min = std::numeric_limits<double>::infinity();
  summary.max = -summary.min;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      ++summary.non_finite;
      continue;
    }
    ++summary.count;
    summary.min = std::min(summary.min, value);
    summary.max = std::max(summary.max, value);
    summary.sum += value;
    summary.sum_of_squares += value * value;
  }
  if (summary.count == 0) {
    summary.min = summary.max = 0;
  }
  return summary;
}

}  // namespace

Histogram histogram_of(std::span<const double> values, int64_t buckets) {
  LOCKSTEP_ASSERT(buckets >= 1, "a histogram has at least one bucket");
  Histogram histogram = summary_of(values);
  if (histogram.count == 0) {
    return histogram;
  }
  if (histogram.min == histogram.max) {
    const double half = std::max(0.5, std::abs(histogram.min) * 0x1p-20);
    histogram.edges = {histogram.min - half, histogram.max + half};
    histogram.counts = {histogram.count};
    return histogram;
  }
  const auto count = static_cast<double>(buckets);
  const double width = histogram.max / count - histogram.min / count;  // The range may overflow.
  for (int64_t i = 0; i < buckets; ++i) {
    histogram.edges.push_back(histogram.min + width * static_cast<double>(i));
  }
  histogram.edges.push_back(histogram.max);
  histogram.counts.assign(static_cast<size_t>(buckets), 0);
  for (const double value : values) {
    if (std::isfinite(value)) {
      const double at = value / width - histogram.min / width;
      ++histogram.counts[static_cast<size_t>(std::clamp(at, 0.0, count - 1))];
    }
  }
  return histogram;
}

}  // namespace lockstep::tracking
