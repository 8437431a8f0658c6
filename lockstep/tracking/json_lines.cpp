// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/json_lines.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/non_finite.h"
#include "lockstep/tracking/values/table.h"

namespace lockstep::tracking::json_lines {
namespace {

using Line = nlohmann::ordered_json;

double time_in_milliseconds() {
  return std::round(wall_time_s() * 1000) / 1000;
}

Line line_of_step(int64_t step) {
  return {{"step", step}, {"time", time_in_milliseconds()}};
}

Line number(double value) {
  if (std::isfinite(value)) {
    return value;
  }
  return name_of_non_finite(value);
}

}  // namespace

std::string config(const nlohmann::json& config) {
  return Line{{"config", config}, {"time", time_in_milliseconds()}}.dump();
}

std::string values(const Values& values, int64_t step, const std::string& where) {
  Line line = line_of_step(step);
  for (const auto& [tag, value] : values) {
    if (tag == "step" || tag == "time") {
      throw ConfigError(
          "tracking",
          fmt::format("'{}' is a reserved name in {}; try 'train/{}'", tag, where, tag));
    }
    line[tag] = number(value);
  }
  return line.dump();
}

std::string histograms(const Histograms& histograms, int64_t step) {
  Line all = Line::object();
  for (const auto& [tag, histogram] : histograms) {
    all[tag] = {
        {"count", histogram.count},
        {"min", number(histogram.min)},
        {"max", number(histogram.max)},
        {"sum", number(histogram.sum)},
        {"sum_of_squares", number(histogram.sum_of_squares)},
        {"non_finite", histogram.non_finite},
        {"edges", histogram.edges},
        {"counts", histogram.counts}};
  }
  Line line = line_of_step(step);
  line["histograms"] = all;
  return line.dump();
}

std::string text(const Texts& texts, int64_t step) {
  Line line = line_of_step(step);
  line["text"] = texts;
  return line.dump();
}

std::string tables(const Tables& tables, int64_t step) {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [tag, table] : tables) {
    all[tag] = portable_config(table_json(table));
  }
  Line line = line_of_step(step);
  line["tables"] = all;
  return line.dump();
}

std::string status(RunStatus status) {
  return Line{{"status", name_of(status)}, {"time", time_in_milliseconds()}}.dump();
}

}  // namespace lockstep::tracking::json_lines
