// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/tracking/file_trackers.h"

namespace lockstep::tracking {
namespace {

using Line = nlohmann::ordered_json;

double time_in_milliseconds() {
  return std::round(wall_time_s() * 1000) / 1000;
}

}  // namespace

JsonlTracker::JsonlTracker(const std::filesystem::path& path) {
  if (path.has_parent_path()) {
    make_folders(path.parent_path());
  }
  file_.open(path);
  incomplete_line_ = file_.last_byte().value_or('\n') != '\n';
}

void JsonlTracker::append_line(std::string line) {
  file_.append((incomplete_line_ ? "\n" : "") + std::move(line) + "\n");
  incomplete_line_ = false;
}

void JsonlTracker::do_store_config(const nlohmann::json& config) {
  append_line(Line{{"config", config}, {"time", time_in_milliseconds()}}.dump());
}

void JsonlTracker::do_log(const Values& values, int64_t step) {
  Line line = {{"step", step}, {"time", time_in_milliseconds()}};
  for (const auto& [tag, value] : values) {
    if (tag == "step" || tag == "time") {
      throw ConfigError(
          "tracking",
          fmt::format(
              "'{}' is a reserved name in {}; try 'train/{}'", tag, file_.path().string(), tag));
    }
    if (std::isfinite(value)) {
      line[tag] = value;
    } else {
      line[tag] = name_of_non_finite(value);
    }
  }
  append_line(line.dump());
}

void JsonlTracker::do_flush() {
  file_.sync();
}

void JsonlTracker::do_finish(RunStatus status) {
  append_line(Line{{"status", name_of(status)}, {"time", time_in_milliseconds()}}.dump());
  file_.close();
}

}  // namespace lockstep::tracking
