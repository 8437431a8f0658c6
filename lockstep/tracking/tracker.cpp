// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tracker.h"

#include <chrono>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;

bool is_utf8(const std::string& text) {
  // dump() is the only validator of the JSON library.
  try {
    [[maybe_unused]] const std::string unused = json(text).dump();
    return true;
  } catch (const json::type_error&) {
    return false;
  }
}

json with_named_numbers(const json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    return name_of_non_finite(value.get<double>());
  }
  if (!value.is_structured()) {
    return value;
  }
  json result = value;
  for (json& item : result) {
    item = with_named_numbers(item);
  }
  return result;
}

}  // namespace

const char* name_of(RunStatus status) {
  switch (status) {
    case RunStatus::kFinished:
      return "finished";
    case RunStatus::kFailed:
      return "failed";
    case RunStatus::kKilled:
      return "killed";
  }
  return "failed";
}

void Tracker::refuse_if_finished(const char* call) const {
  if (finished_) {
    throw ConfigError(
        "tracking",
        fmt::format(
            "{} was called on tracker '{}' after finish; create a new tracker for a new run",
            call,
            name()));
  }
}

void Tracker::store_config(const nlohmann::json& config) {
  refuse_if_finished("store_config");
  if (!config.is_object()) {
    throw ConfigError(
        "tracking",
        fmt::format(
            "the config of a run must have names; got a JSON {}, expected an object; try {{\"lr\": "
            "0.1}}",
            config.type_name()));
  }
  do_store_config(portable_config(config));
}

void Tracker::log(const Values& values, int64_t step) {
  refuse_if_finished("log");
  if (step < 0) {
    throw ConfigError(
        "tracking", fmt::format("the step is negative; got {}, expected 0 or more", step));
  }
  for (const auto& [tag, value] : values) {
    if (tag.empty()) {
      throw ConfigError(
          "tracking",
          fmt::format(
              "the name of a value is empty; got value {} at step {}, expected a name",
              value,
              step));
    }
    if (!is_utf8(tag)) {
      throw ConfigError(
          "tracking",
          fmt::format(
              "the name of a value is not valid UTF-8; got {}, expected UTF-8",
              json(tag).dump(-1, ' ', true, json::error_handler_t::replace)));
    }
  }
  if (!values.empty()) {
    do_log(values, step);
  }
}

void Tracker::flush() {
  if (!finished_) {
    do_flush();
  }
}

void Tracker::finish(RunStatus status) {
  if (!finished_) {
    finished_ = true;
    do_finish(status);
  }
}

const char* name_of_non_finite(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  return value > 0 ? "Infinity" : "-Infinity";
}

nlohmann::json portable_config(const nlohmann::json& config) {
  const json named = with_named_numbers(config);
  return json::parse(named.dump(-1, ' ', false, json::error_handler_t::replace));
}

double wall_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep::tracking
