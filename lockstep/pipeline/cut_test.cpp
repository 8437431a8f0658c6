// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/cut.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include <gmock/gmock.h>

#include "lockstep/base/error.h"

namespace lockstep::pipeline {
namespace {

using testing::HasSubstr;

std::pair<double, double> largest_and_squares(
    const std::vector<double>& costs, const Bounds& bounds) {
  double largest = 0;
  double squares = 0;
  for (size_t chunk = 0; chunk + 1 < bounds.size(); ++chunk) {
    double sum = 0;
    for (size_t layer = bounds[chunk]; layer < bounds[chunk + 1]; ++layer) {
      sum += costs[layer];
    }
    largest = std::max(largest, sum);
    squares += sum * sum;
  }
  return {largest, squares};
}

/// Tries all cuts.
std::pair<double, double> best_of_all(
    const std::vector<double>& costs, size_t chunks, Bounds bounds = {0}) {
  if (bounds.size() == chunks) {
    bounds.push_back(costs.size());
    return largest_and_squares(costs, bounds);
  }
  std::pair<double, double> best(std::numeric_limits<double>::infinity(), 0);
  for (size_t next = bounds.back() + 1; next + (chunks - bounds.size()) <= costs.size(); ++next) {
    Bounds longer = bounds;
    longer.push_back(next);
    best = std::min(best, best_of_all(costs, chunks, longer));
  }
  return best;
}

TEST(PipelineCut, GivesTheFirstChunksTheRestOfAUniformCut) {
  EXPECT_EQ(cut_uniformly(11, 4), (Bounds{0, 3, 6, 9, 11}));
  EXPECT_EQ(cut_uniformly(8, 4), (Bounds{0, 2, 4, 6, 8}));
  EXPECT_EQ(cut_uniformly(3, 3), (Bounds{0, 1, 2, 3}));
}

TEST(PipelineCut, FindsTheBestCutOfAllByCost) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> costs(1 + random() % 9);
    for (double& cost : costs) {
      cost = static_cast<double>(random() % 5) * (random() % 8 == 0 ? 20 : 1);
    }
    for (size_t chunks = 1; chunks <= costs.size(); ++chunks) {
      const Bounds bounds = cut_by_cost(costs, chunks);
      ASSERT_EQ(bounds.size(), chunks + 1);
      EXPECT_EQ(bounds.front(), 0U);
      EXPECT_EQ(bounds.back(), costs.size());
      EXPECT_EQ(
          std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()), bounds.end());
      EXPECT_EQ(largest_and_squares(costs, bounds), best_of_all(costs, chunks))
          << testing::PrintToString(costs) << " in " << chunks;
    }
  }
}

TEST(PipelineCut, DividesTheRestEvenlyBehindOneExpensiveLayer) {
  EXPECT_EQ(cut_by_cost({100, 1, 1, 1, 1, 1, 1}, 4), (Bounds{0, 1, 3, 5, 7}));
}

TEST(PipelineCut, CutsAThousandLayersOfAnySize) {
  std::vector<double> costs(1000, 1e300 / 1000);
  const Bounds bounds = cut_by_cost(costs, 8);
  for (size_t chunk = 0; chunk < 8; ++chunk) {
    EXPECT_NEAR(static_cast<double>(bounds[chunk + 1] - bounds[chunk]), 125, 1);
  }
  EXPECT_EQ(cut_by_cost({0, 0, 0}, 2).size(), 3U);
}

TEST(PipelineCut, CountsOnlyTheLayersOfAClass) {
  const std::vector<std::string> names = {
      "Embedding", "Dropout", "Block", "Block", "Block", "Block", "Norm", "Linear"};
  const Bounds bounds = cut_by_class(names, "type|block", 2);
  EXPECT_EQ(bounds.size(), 3U);
  EXPECT_EQ(bounds[1], 4U);
  const Bounds four = cut_by_class(names, "^Bl", 4);
  for (size_t chunk = 0; chunk < 4; ++chunk) {
    EXPECT_EQ(
        std::count(
            names.begin() + static_cast<std::ptrdiff_t>(four[chunk]),
            names.begin() + static_cast<std::ptrdiff_t>(four[chunk + 1]),
            "Block"),
        1);
  }
}

TEST(PipelineCut, TakesGivenStarts) {
  EXPECT_EQ(cut_at({1, 5}, 8, 3), (Bounds{0, 1, 5, 8}));
  EXPECT_EQ(cut_at({}, 8, 1), (Bounds{0, 8}));
}

TEST(PipelineCut, RefusesWhatCannotBeCut) {
  const auto expect_refused = [](const auto& cut, const char* text) {
    try {
      cut();
      ADD_FAILURE() << "nothing was thrown; expected " << text;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  };
  expect_refused([] { cut_uniformly(3, 4); }, "3 layers are fewer than 4 chunks");
  expect_refused([] { cut_by_cost({1, 2}, 3); }, "2 layers are fewer than 3 chunks");
  expect_refused([] { cut_by_cost({1, 2}, 0); }, "got 0 chunks");
  expect_refused([] { cut_by_cost({1, -2}, 2); }, "the cost of layer 1 is -2");
  expect_refused([] { cut_by_cost({std::nan(""), 2}, 2); }, "the cost of layer 0 is nan");
  expect_refused([] { cut_by_class({"A", "B"}, "(", 2); }, "\"(\" is not a regular expression");
  expect_refused([] { cut_by_class({"A", "B", "A"}, "b", 2); }, "matches 1 of 3 layers");
  expect_refused([] { cut_at({2, 2}, 8, 3); }, "expected 2 ascending numbers from 1 to 7");
  expect_refused([] { cut_at({0}, 8, 2); }, "got cuts before the layers [0]");
  expect_refused([] { cut_at({8}, 8, 2); }, "got cuts before the layers [8]");
  expect_refused([] { cut_at({2}, 8, 3); }, "for 3 chunks of 8 layers");
}

}  // namespace
}  // namespace lockstep::pipeline
