// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/cut.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"

namespace lockstep::pipeline {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError("pipeline", message);
}

void check_counts(size_t layers, size_t chunks) {
  if (chunks == 0) {
    refuse("got 0 chunks; expected at least 1");
  }
  if (layers < chunks) {
    refuse(fmt::format(
        "{} layers are fewer than {} chunks; expected at least one layer for each chunk; use "
        "fewer ranks, or fewer chunks on each rank",
        layers,
        chunks));
  }
}

/// Finds the cut with the smallest total, where `add(total, cost)` is the total with one chunk
/// more. Chunks of more than `limit` are not considered.
template <typename Add>
Bounds smallest(const std::vector<double>& sums, size_t chunks, double limit, const Add& add) {
  const size_t layers = sums.size() - 1;
  constexpr double kNone = std::numeric_limits<double>::infinity();
  // [n]: the smallest total of the first n layers in as many chunks as the loop has added.
  std::vector<double> totals(layers + 1, kNone);
  totals[0] = 0;
  std::vector<std::vector<size_t>> starts(chunks, std::vector<size_t>(layers + 1));
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    std::vector<double> next(layers + 1, kNone);
    for (size_t end = chunk + 1; end <= layers; ++end) {
      for (size_t start = end - 1; start + 1 > chunk && sums[end] - sums[start] <= limit; --start) {
        const double total = add(totals[start], sums[end] - sums[start]);
        if (total < next[end]) {
          next[end] = total;
          starts[chunk][end] = start;
        }
      }
    }
    totals = std::move(next);
  }
  Bounds bounds(chunks + 1, layers);
  for (size_t chunk = chunks; chunk-- > 0;) {
    bounds[chunk] = starts[chunk][bounds[chunk + 1]];
  }
  return bounds;
}

}  // namespace

Bounds cut_uniformly(size_t layers, size_t chunks) {
  check_counts(layers, chunks);
  Bounds bounds{0};
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    bounds.push_back(bounds.back() + layers / chunks + (chunk < layers % chunks ? 1 : 0));
  }
  return bounds;
}

Bounds cut_by_cost(const std::vector<double>& costs, size_t chunks) {
  check_counts(costs.size(), chunks);
  std::vector<double> sums{0};
  for (size_t layer = 0; layer < costs.size(); ++layer) {
    const double cost = costs[layer];
    if (!std::isfinite(cost) || cost < 0) {
      refuse(fmt::format(
          "the cost of layer {} is {}; expected a number of at least 0; check the costs",
          layer,
          cost));
    }
    sums.push_back(sums.back() + cost);
  }
  const Bounds first =
      smallest(sums, chunks, std::numeric_limits<double>::max(), [](double total, double cost) {
        return std::max(total, cost);
      });
  double largest = 0;
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    largest = std::max(largest, sums[first[chunk + 1]] - sums[first[chunk]]);
  }
  // The part of the mean in each chunk, so that squares of large costs stay finite.
  const double scale = sums.back() > 0 ? 1 / sums.back() : 1;
  return smallest(sums, chunks, largest, [scale](double total, double cost) {
    return total + (cost * scale) * (cost * scale);
  });
}

Bounds cut_by_class(
    const std::vector<std::string>& class_names, const std::string& pattern, size_t chunks) {
  check_counts(class_names.size(), chunks);
  std::vector<double> costs;
  try {
    const std::regex regex(pattern, std::regex::ECMAScript | std::regex::icase);
    for (const std::string& name : class_names) {
      costs.push_back(std::regex_search(name, regex) ? 1 : 0);
    }
  } catch (const std::regex_error& error) {
    refuse(fmt::format(
        "the pattern \"{}\" is not a regular expression: {}; expected one of ECMAScript",
        pattern,
        error.what()));
  }
  const auto matches = static_cast<size_t>(std::count(costs.begin(), costs.end(), 1.0));
  if (matches < chunks) {
    std::vector<std::string> names = class_names;
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    refuse(fmt::format(
        "the pattern \"{}\" matches {} of {} layers, for {} chunks; expected at least one "
        "match for each chunk; the classes are {}",
        pattern,
        matches,
        class_names.size(),
        chunks,
        fmt::join(names, ", ")));
  }
  return cut_by_cost(costs, chunks);
}

Bounds cut_at(const std::vector<size_t>& starts, size_t layers, size_t chunks) {
  check_counts(layers, chunks);
  Bounds bounds{0};
  bounds.insert(bounds.end(), starts.begin(), starts.end());
  bounds.push_back(layers);
  const bool ascends =
      std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end();
  if (!ascends || starts.size() != chunks - 1) {
    refuse(fmt::format(
        "got cuts before the layers [{}]; expected {} ascending numbers from 1 to {}, for {} "
        "chunks of {} layers",
        fmt::join(starts, ", "),
        chunks - 1,
        layers - 1,
        chunks,
        layers));
  }
  return bounds;
}

}  // namespace lockstep::pipeline
