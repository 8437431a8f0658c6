// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/values/histogram.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::tracking {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Histogram, CountsValuesInBucketsOfEqualWidth) {
  const Histogram histogram = histogram_of(std::vector<double>{0, 1, 1.5, 2, 3.9, 4}, 4);
  EXPECT_THAT(histogram.edges, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(histogram.counts, ElementsAre(1, 2, 1, 2));
  EXPECT_EQ(histogram.count, 6);
  EXPECT_EQ(histogram.min, 0);
  EXPECT_EQ(histogram.max, 4);
  EXPECT_DOUBLE_EQ(histogram.sum, 12.4);
  EXPECT_DOUBLE_EQ(histogram.sum_of_squares, 1 + 2.25 + 4 + 3.9 * 3.9 + 16);
}

TEST(Histogram, EqualValuesAreInOneBucketAroundThem) {
  for (const double value : {0.0, -3.0, 1e20}) {
    const Histogram histogram = histogram_of(std::vector<double>{value, value});
    EXPECT_THAT(histogram.counts, ElementsAre(2));
    EXPECT_LT(histogram.edges.at(0), value);
    EXPECT_GT(histogram.edges.at(1), value);
  }
}

TEST(Histogram, CountsNumbersThatAreNotFiniteApart) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {1, infinity, -infinity, std::nan(""), 2};
  const Histogram histogram = histogram_of(values, 2);
  EXPECT_EQ(histogram.non_finite, 3);
  EXPECT_THAT(histogram.counts, ElementsAre(1, 1));
  const Histogram none = histogram_of(std::vector<double>{infinity});
  EXPECT_EQ(none.count, 0);
  EXPECT_THAT(none.counts, IsEmpty());
  EXPECT_THAT(none.edges, IsEmpty());
}

TEST(Histogram, LosesNoValueOfTheFullRange) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const Histogram histogram = histogram_of(std::vector<double>{-kMost, 0, kMost});
  EXPECT_EQ(std::accumulate(histogram.counts.begin(), histogram.counts.end(), int64_t{0}), 3);
  EXPECT_EQ(histogram.counts.front(), 1);
  EXPECT_EQ(histogram.counts.back(), 1);
}

}  // namespace
}  // namespace lockstep::tracking
