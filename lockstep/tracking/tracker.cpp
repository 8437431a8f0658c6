// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tracker.h"

#include <chrono>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"
#include "lockstep/tracking/values/non_finite.h"
#include "lockstep/tracking/values/table.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;

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

void check_step(int64_t step) {
  if (step < 0) {
    throw ConfigError(
        "tracking", fmt::format("the step is negative; got {}, expected 0 or more", step));
  }
}

/// `description` tells the value of an empty name from others.
void check_name(const std::string& name, const std::string& description, int64_t step) {
  if (name.empty()) {
    throw ConfigError(
        "tracking",
        fmt::format(
            "the name of a value is empty; got {} at step {}, expected a name", description, step));
  }
  if (!is_utf8(name)) {
    throw ConfigError(
        "tracking",
        fmt::format(
            "the name of a value is not valid UTF-8; got {}, expected UTF-8",
            json(name).dump(-1, ' ', true, json::error_handler_t::replace)));
  }
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

const char* name_of(MediaKind kind) {
  switch (kind) {
    case MediaKind::kImages:
      return "images";
    case MediaKind::kHistograms:
      return "histograms";
    case MediaKind::kText:
      return "text";
    case MediaKind::kTables:
      return "tables";
  }
  return "text";
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
  check_step(step);
  for (const auto& [name, value] : values) {
    check_name(name, fmt::format("value {}", value), step);
  }
  if (!values.empty()) {
    do_log(values, step);
  }
}

void Tracker::refuse_unless_stored(MediaKind kind) const {
  if (!stores(kind)) {
    throw ConfigError(
        "tracking",
        fmt::format(
            "tracker '{}' stores no {}; log them to a tracker that does, such as tensorboard",
            name(),
            name_of(kind)));
  }
}

template <class Items>
void Tracker::check_media(MediaKind kind, const Items& items, int64_t step) const {
  refuse_if_finished(name_of(kind));
  refuse_unless_stored(kind);
  check_step(step);
  for (const auto& [name, item] : items) {
    check_name(name, name_of(kind), step);
  }
}

void Tracker::log_images(const ImageBatches& images, int64_t step) {
  check_media(MediaKind::kImages, images, step);
  for (const auto& [name, batch] : images) {
    check_images(name, batch);
  }
  if (!images.empty()) {
    do_log_images(images, step);
  }
}

void Tracker::log_histograms(const Histograms& histograms, int64_t step) {
  check_media(MediaKind::kHistograms, histograms, step);
  if (!histograms.empty()) {
    do_log_histograms(histograms, step);
  }
}

void Tracker::log_text(const Texts& texts, int64_t step) {
  check_media(MediaKind::kText, texts, step);
  for (const auto& [name, text] : texts) {
    if (!is_utf8(text)) {
      throw ConfigError(
          "tracking",
          fmt::format("text '{}' is not valid UTF-8 at step {}; expected UTF-8", name, step));
    }
  }
  if (!texts.empty()) {
    do_log_text(texts, step);
  }
}

void Tracker::log_tables(const Tables& tables, int64_t step) {
  check_media(MediaKind::kTables, tables, step);
  for (const auto& [name, table] : tables) {
    check_table(name, table);
  }
  if (!tables.empty()) {
    do_log_tables(tables, step);
  }
}

void Tracker::do_log_images(const ImageBatches& /*images*/, int64_t /*step*/) {
  LOCKSTEP_ASSERT(false, "a tracker that stores images overrides do_log_images");
}

void Tracker::do_log_histograms(const Histograms& /*histograms*/, int64_t /*step*/) {
  LOCKSTEP_ASSERT(false, "a tracker that stores histograms overrides do_log_histograms");
}

void Tracker::do_log_text(const Texts& /*texts*/, int64_t /*step*/) {
  LOCKSTEP_ASSERT(false, "a tracker that stores text overrides do_log_text");
}

void Tracker::do_log_tables(const Tables& /*tables*/, int64_t /*step*/) {
  LOCKSTEP_ASSERT(false, "a tracker that stores tables overrides do_log_tables");
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

nlohmann::json portable_config(const nlohmann::json& config) {
  const json named = with_named_numbers(config);
  return json::parse(named.dump(-1, ' ', false, json::error_handler_t::replace));
}

double wall_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep::tracking
