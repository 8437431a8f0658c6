// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/wandb/wandb_tracker.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <random>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <protozero/pbf_writer.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"
#include "lockstep/tracking/values/non_finite.h"
#include "lockstep/tracking/values/table.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;
using protozero::pbf_writer;

// Fields of wandb_internal.proto: of Record,
constexpr uint32_t kHistory = 2;
constexpr uint32_t kSummary = 3;
constexpr uint32_t kConfig = 5;
constexpr uint32_t kFiles = 6;
constexpr uint32_t kRun = 17;
constexpr uint32_t kExit = 18;
// of HistoryRecord, SummaryRecord, ConfigRecord, FilesRecord and their items,
constexpr uint32_t kHistoryItem = 1;
constexpr uint32_t kHistoryStep = 2;
constexpr uint32_t kUpdate = 1;
constexpr uint32_t kItemKey = 1;
constexpr uint32_t kItemJson = 16;
constexpr uint32_t kFilesItem = 1;
constexpr uint32_t kFilePath = 1;
// of RunRecord,
constexpr uint32_t kRunId = 1;
constexpr uint32_t kRunEntity = 2;
constexpr uint32_t kRunProject = 3;
constexpr uint32_t kRunGroup = 6;
constexpr uint32_t kRunJobType = 7;
constexpr uint32_t kRunName = 8;
constexpr uint32_t kRunNotes = 9;
constexpr uint32_t kRunTags = 10;
constexpr uint32_t kRunHost = 13;
constexpr uint32_t kRunStartTime = 17;
constexpr uint32_t kSeconds = 1;
constexpr uint32_t kNanos = 2;
// and of RunExitRecord.
constexpr uint32_t kExitCode = 1;
constexpr uint32_t kRuntime = 2;

std::string or_variable(const std::string& value, const char* variable) {
  return value.empty() ? Environment::process().text(variable).value_or("") : value;
}

std::string random_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device device;
  std::string id;
  for (int i = 0; i < 8; ++i) {
    id += kLetters[device() % kLetters.size()];
  }
  return id;
}

WandbOptions resolved(WandbOptions options) {
  options.project = or_variable(options.project, "WANDB_PROJECT");
  options.entity = or_variable(options.entity, "WANDB_ENTITY");
  options.name = or_variable(options.name, "WANDB_NAME");
  options.group = or_variable(options.group, "WANDB_RUN_GROUP");
  options.job_type = or_variable(options.job_type, "WANDB_JOB_TYPE");
  options.notes = or_variable(options.notes, "WANDB_NOTES");
  options.id = or_variable(options.id, "WANDB_RUN_ID");
  options.dir = or_variable(options.dir, "WANDB_DIR");
  const std::string tags = or_variable("", "WANDB_TAGS");
  if (options.tags.empty() && !tags.empty()) {
    options.tags = split(tags, ',');
  }
  if (options.id.empty()) {
    options.id = random_id();
  }
  if (options.id.find('/') != std::string::npos) {
    throw ConfigError(
        "wandb",
        fmt::format("invalid value '{}' for id; expected a file name without '/'", options.id));
  }
  return options;
}

std::string folder_name(double start_s, const std::string& id) {
  const auto seconds = static_cast<std::time_t>(start_s);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &local);
  return fmt::format("offline-run-{}-{}", text.data(), id);
}

/// Returns the JSON text of a number; Python's NaN, Infinity and -Infinity, as wandb has them.
std::string json_number(double value) {
  return std::isfinite(value) ? json(value).dump() : name_of_non_finite(value);
}

/// Appends an item to a record.
void add_item(
    pbf_writer& record, uint32_t field, const std::string& key, const std::string& json_text) {
  pbf_writer item(record, field);
  item.add_string(kItemKey, key);
  item.add_string(kItemJson, json_text);
}

void add_file(pbf_writer& files, const std::string& path) {
  pbf_writer(files, kFilesItem).add_string(kFilePath, path);
}

/// Returns a table's JSON as Python writes it, with NaN and infinities.
std::string python_json(const Table& table) {
  std::string text = json{{"columns", table.columns}}.dump();
  text.back() = ',';
  text += "\"data\":[";
  for (size_t row = 0; row < table.rows.size(); ++row) {
    text += row == 0 ? "[" : ",[";
    for (size_t i = 0; i < table.columns.size(); ++i) {
      const json& cell = table.rows[row][i];
      text += i == 0 ? "" : ",";
      text += cell.is_number_float() ? json_number(cell.get<double>()) : cell.dump();
    }
    text += ']';
  }
  return text + "]}";
}

/// Returns `media/<kind>/<name>_<step>`, without special parts.
std::string media_path(const char* kind, const std::string& name, int64_t step) {
  std::string path = fmt::format("media/{}", kind);
  for (const auto& part : std::filesystem::path(name)) {
    if (part != ".." && part != "." && part != "/" && !part.empty()) {
      path += "/" + part.string();
    }
  }
  return fmt::format("{}_{}", path, step);
}

}  // namespace

WandbTracker::WandbTracker(const std::filesystem::path& folder, WandbOptions options)
    : options_(resolved(std::move(options))), start_s_(wall_time_s()) {
  const std::filesystem::path base =
      options_.dir.empty() ? folder : std::filesystem::path(options_.dir);
  folder_ = base / "wandb" / folder_name(start_s_, options_.id);
  make_folders(folder_ / "files");
  if (!file_.create(folder_ / fmt::format("run-{}.wandb", options_.id))) {
    throw ConfigError(
        folder_.string(),
        "another run with this id started in the same second; choose another id, or start later");
  }
  append_run();
}

void WandbTracker::append_run() {
  std::string bytes;
  pbf_writer run(bytes);
  const auto add = [&](uint32_t field, const std::string& value) {
    if (!value.empty()) {
      run.add_string(field, value);
    }
  };
  add(kRunId, options_.id);
  add(kRunEntity, options_.entity);
  add(kRunProject, options_.project);
  add(kRunGroup, options_.group);
  add(kRunJobType, options_.job_type);
  add(kRunName, options_.name);
  add(kRunNotes, options_.notes);
  for (const std::string& tag : options_.tags) {
    add(kRunTags, tag);
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  add(kRunHost, host.data());
  const auto seconds = static_cast<int64_t>(start_s_);
  const auto nanos = static_cast<int64_t>((start_s_ - static_cast<double>(seconds)) * 1e9);
  {
    pbf_writer start(run, kRunStartTime);
    start.add_int64(kSeconds, seconds);
    start.add_int64(kNanos, nanos);
  }
  file_.append(kRun, bytes);
}

void WandbTracker::do_store_config(const json& config) {
  std::string bytes;
  pbf_writer update(bytes);
  for (const auto& [key, value] : config.items()) {
    add_item(update, kUpdate, key, value.dump());
  }
  file_.append(kConfig, bytes);
}

void WandbTracker::append_history(const std::map<std::string, std::string>& items, int64_t step) {
  const double now_s = wall_time_s();
  std::map<std::string, std::string> row = items;
  row["_step"] = std::to_string(step);
  row["_timestamp"] = json_number(now_s);
  row["_runtime"] = json_number(now_s - start_s_);
  std::string bytes;
  pbf_writer history(bytes);
  for (const auto& [key, text] : row) {
    add_item(history, kHistoryItem, key, text);
    summary_[key] = text;
  }
  pbf_writer(history, kHistoryStep).add_int64(1, step);
  file_.append(kHistory, bytes);
}

void WandbTracker::do_log(const Values& values, int64_t step) {
  std::map<std::string, std::string> items;
  for (const auto& [name, value] : values) {
    items[name] = json_number(value);
  }
  append_history(items, step);
}

void WandbTracker::write_media(const std::string& path, const std::string& bytes) const {
  const std::filesystem::path full = folder_ / "files" / path;
  make_folders(full.parent_path());
  std::error_code ignored;
  std::filesystem::remove(full, ignored);  // Of the same step, before.
  AppendFile file;
  file.open(full);
  file.append(bytes);
  file.close();
}

void WandbTracker::do_log_images(const ImageBatches& images, int64_t step) {
  std::map<std::string, std::string> items;
  std::string file_names;
  pbf_writer files(file_names);
  for (const auto& [name, batch] : images) {
    json paths = json::array();
    for (int64_t i = 0; i < batch.count; ++i) {
      const std::string path = fmt::format("{}_{}.png", media_path("images", name, step), i);
      write_media(path, png(batch, i));
      paths.push_back(path);
      add_file(files, path);
    }
    items[name] = json{
        {"_type", "images/separated"},
        {"width", batch.width},
        {"height", batch.height},
        {"format", "png"},
        {"count", batch.count},
        {"filenames",
         paths}}.dump();
  }
  append_history(items, step);
  file_.append(kFiles, file_names);
}

void WandbTracker::do_log_histograms(const Histograms& histograms, int64_t step) {
  std::map<std::string, std::string> items;
  for (const auto& [name, histogram] : histograms) {
    if (histogram.count > 0) {
      items[name] =
          json{{"_type", "histogram"}, {"values", histogram.counts}, {"bins", histogram.edges}}
              .dump();
    }
    if (histogram.non_finite > 0) {
      items[name + "/non_finite"] = std::to_string(histogram.non_finite);
    }
  }
  append_history(items, step);
}

void WandbTracker::do_log_text(const Texts& texts, int64_t step) {
  std::map<std::string, std::string> items;
  for (const auto& [name, text] : texts) {
    items[name] = json(text).dump();
  }
  append_history(items, step);
}

void WandbTracker::do_log_tables(const Tables& tables, int64_t step) {
  std::map<std::string, std::string> items;
  std::string file_names;
  pbf_writer files(file_names);
  for (const auto& [name, table] : tables) {
    const std::string path = media_path("table", name, step) + ".table.json";
    const std::string bytes = python_json(table);
    write_media(path, bytes);
    add_file(files, path);
    items[name] = json{
        {"_type", "table-file"},
        {"path", path},
        {"size", bytes.size()},
        {"ncols", table.columns.size()},
        {"nrows", table.rows.size()},
        {"log_mode",
         "IMMUTABLE"}}.dump();
  }
  append_history(items, step);
  file_.append(kFiles, file_names);
}

void WandbTracker::append_summary() {
  std::string bytes;
  pbf_writer update(bytes);
  for (const auto& [key, text] : summary_) {
    add_item(update, kUpdate, key, text);
  }
  if (!summary_.empty()) {
    file_.append(kSummary, bytes);
  }
}

void WandbTracker::do_flush() {
  append_summary();
  file_.sync();
}

void WandbTracker::do_finish(RunStatus status) {
  append_summary();
  const int64_t exit_code = status == RunStatus::kFinished ? 0
                            : status == RunStatus::kFailed ? 1
                                                           : 137;
  std::string bytes;
  pbf_writer exit(bytes);
  exit.add_int64(kExitCode, exit_code);
  exit.add_int64(kRuntime, static_cast<int64_t>(wall_time_s() - start_s_));
  file_.append(kExit, bytes);
  file_.close();
}

}  // namespace lockstep::tracking
