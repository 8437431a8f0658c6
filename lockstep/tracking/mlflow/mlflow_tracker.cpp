// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/mlflow/mlflow_tracker.h"

#include <atomic>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/tracking/flat_config.h"
#include "lockstep/tracking/json_lines.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"
#include "lockstep/tracking/values/non_finite.h"
#include "lockstep/tracking/values/table.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;

constexpr size_t kMostOfBatch = 1000;
constexpr size_t kMostParamsOfBatch = 100;
constexpr size_t kMostOfValue = 6000;
constexpr size_t kMostOfTag = 5000;
constexpr const char* kSpoolPrefix = "mlflow-";

std::string variable_or(const char* name, const std::string& value) {
  return Environment::process().text(name).value_or(value);
}

std::string checked_uri(std::string uri) {
  if (uri.empty()) {
    uri = variable_or("MLFLOW_TRACKING_URI", "");
  }
  while (uri.ends_with('/')) {
    uri.pop_back();
  }
  if (!uri.starts_with("http://") && !uri.starts_with("https://")) {
    throw ConfigError(
        "mlflow",
        fmt::format(
            "the tracker needs a server; got tracking_uri '{}', expected http:// or https://; set "
            "MLFLOW_TRACKING_URI, and start one by `mlflow server`",
            uri));
  }
  if (uri.find('@') != std::string::npos) {
    throw ConfigError(
        "mlflow",
        "tracking_uri has credentials, which would be stored in the spool; set "
        "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD");
  }
  return uri;
}

int64_t milliseconds_since_1970() {
  return static_cast<int64_t>(wall_time_s() * 1000);
}

/// Returns the name with '_' for characters that MLflow does not accept in names.
std::string accepted_name(const std::string& name) {
  std::string result;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool accepted = byte >= 0x80 || std::isalnum(byte) != 0 ||
                          std::string("_/.- ").find(c) != std::string::npos;
    result += accepted ? c : '_';
  }
  return result;
}

/// Returns `<kind>/<name>/<step>`, without empty or special parts.
std::string artifact_path(const char* kind, const std::string& name, int64_t step) {
  std::string path = kind;
  for (const auto& part : std::filesystem::path(accepted_name(name))) {
    if (part != ".." && part != "." && part != "/" && !part.empty()) {
      path += "/" + part.string();
    }
  }
  return fmt::format("{}/{}", path, step);
}

json metric_value(double value) {
  if (std::isfinite(value)) {
    return value;
  }
  return name_of_non_finite(value);  // The names of protobuf's JSON.
}

json tags_of(const MlflowOptions& options) {
  std::map<std::string, std::string> tags = options.tags;
  const std::string from_environment = variable_or("MLFLOW_TAGS", "");
  if (!from_environment.empty()) {
    const json parsed = json::parse(from_environment, nullptr, false);
    if (!parsed.is_object()) {
      throw ConfigError(
          "MLFLOW_TAGS", "invalid value; expected a JSON object, such as {\"team\": \"a\"}");
    }
    tags.clear();
    for (const auto& [key, value] : parsed.items()) {
      tags[key] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  if (!options.description.empty()) {
    tags["mlflow.note.content"] = options.description;
  }
  tags.emplace("mlflow.user", variable_or("LOGNAME", variable_or("USER", "unknown")));
  tags.emplace("mlflow.source.name", program_invocation_short_name);
  tags.emplace("mlflow.source.type", "LOCAL");
  json result = json::array();
  for (const auto& [key, value] : tags) {
    result.push_back({{"key", key}, {"value", value}});
  }
  return result;
}

/// Returns the value of the tag that names the tables. Drops the oldest ones that do not fit.
std::string tag_of_tables(std::deque<std::string>& paths) {
  json entries = json::array();
  for (const std::string& path : paths) {
    entries.push_back({{"path", path}, {"type", "table"}});
  }
  std::string text = entries.dump();
  while (text.size() > kMostOfTag && !paths.empty()) {
    paths.pop_front();
    entries.erase(0);
    text = entries.dump();
  }
  return text;
}

json run_line(const MlflowOptions& options, const std::string& key) {
  return {
      {"uri", options.tracking_uri},
      {"run",
       {{"key", key},
        {"run_id", options.run_id},
        {"experiment_name", options.experiment_name},
        {"run_name", options.run_name},
        {"start_time", milliseconds_since_1970()},
        {"tags", tags_of(options)}}}};
}

std::chrono::milliseconds limit_of(const MlflowOptions& options) {
  return std::chrono::milliseconds(static_cast<int64_t>(options.finish_timeout_s * 1000));
}

/// Returns the server of a spool; empty if it cannot be read.
std::string uri_of_spool(const std::filesystem::path& path) {
  std::ifstream file(path);  // Only the first line: a spool may be long.
  std::string line;
  std::getline(file, line);
  const json first = json::parse(line, nullptr, false);
  return first.is_object() ? first.value("uri", "") : "";
}

}  // namespace

MlflowTracker::MlflowTracker(const std::filesystem::path& folder, MlflowOptions options)
    : options_(std::move(options)) {
  options_.tracking_uri = checked_uri(options_.tracking_uri);
  options_.experiment_name = variable_or("MLFLOW_EXPERIMENT_NAME", options_.experiment_name);
  options_.run_id = variable_or("MLFLOW_RUN_ID", options_.run_id);
  if (options_.experiment_name.empty()) {
    options_.experiment_name = "Default";
  }
  make_folders(folder);
  static std::atomic<int> count{0};
  const std::string key =
      fmt::format("{}{}-{}-{}", kSpoolPrefix, milliseconds_since_1970(), ::getpid(), count++);
  const json line = run_line(options_, key);
  adopt_earlier_spools(folder);
  sender_ = std::make_unique<MlflowSender>(folder, key, options_.tracking_uri);
  sender_->append(line);
}

MlflowTracker::~MlflowTracker() = default;

void MlflowTracker::adopt_earlier_spools(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (!name.starts_with(kSpoolPrefix) || !name.ends_with(".jsonl") ||
        name.ends_with(".refused.jsonl") || uri_of_spool(entry.path()) != options_.tracking_uri) {
      continue;
    }
    name.resize(name.size() - std::string(".jsonl").size());
    try {
      earlier_.push_back(std::make_unique<MlflowSender>(folder, name, options_.tracking_uri));
    } catch (const ConfigError&) {
      continue;  // Its process lives.
    }
    log_info(fmt::format("[mlflow] sending the rest of an earlier run: {}", entry.path().string()));
  }
}

void MlflowTracker::do_store_config(const json& config) {
  const json flat = flat_config(config);
  json params = json::array();
  const auto send = [&] {
    if (!params.empty()) {
      sender_->append({{"params", std::exchange(params, json::array())}});
    }
  };
  for (const auto& [name, value] : flat.items()) {
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (text.size() > kMostOfValue) {
      log_warning(fmt::format(
          "[mlflow] setting '{}' is cut to {} of {} bytes; config.json has all of it",
          name,
          kMostOfValue,
          text.size()));
      text.resize(kMostOfValue);
    }
    params.push_back({{"key", accepted_name(name)}, {"value", text}});
    if (params.size() == kMostParamsOfBatch) {
      send();
    }
  }
  send();
  sender_->append_artifact("config.json", config.dump(2) + "\n");
}

void MlflowTracker::do_log(const Values& values, int64_t step) {
  const int64_t time_ms = milliseconds_since_1970();
  json metrics = json::array();
  for (const auto& [name, value] : values) {
    metrics.push_back(
        {{"key", accepted_name(name)},
         {"value", metric_value(value)},
         {"timestamp", time_ms},
         {"step", step}});
    if (metrics.size() == kMostOfBatch) {
      sender_->append({{"metrics", std::exchange(metrics, json::array())}});
    }
  }
  if (!metrics.empty()) {
    sender_->append({{"metrics", metrics}});
  }
}

void MlflowTracker::do_log_images(const ImageBatches& images, int64_t step) {
  for (const auto& [name, batch] : images) {
    const std::string path = artifact_path("images", name, step);
    for (int64_t i = 0; i < batch.count; ++i) {
      sender_->append_artifact(fmt::format("{}_{}.png", path, i), png(batch, i));
    }
  }
}

void MlflowTracker::do_log_histograms(const Histograms& histograms, int64_t step) {
  for (const auto& [name, histogram] : histograms) {
    sender_->append_artifact(
        artifact_path("histograms", name, step) + ".json",
        json_lines::histograms({{name, histogram}}, step) + "\n");
  }
}

void MlflowTracker::do_log_text(const Texts& texts, int64_t step) {
  for (const auto& [name, text] : texts) {
    sender_->append_artifact(artifact_path("text", name, step) + ".txt", text);
  }
}

void MlflowTracker::do_log_tables(const Tables& tables, int64_t step) {
  for (const auto& [name, table] : tables) {
    const std::string path = artifact_path("tables", name, step) + ".json";
    sender_->append_artifact(path, table_json(table).dump());
    std::erase(tables_, path);
    tables_.push_back(path);
  }
  const json tag = {{"key", "mlflow.loggedArtifacts"}, {"value", tag_of_tables(tables_)}};
  sender_->append({{"tags", json::array({tag})}});
}

void MlflowTracker::log_artifact(const std::filesystem::path& file, const std::string& path) {
  const auto bytes = file_bytes(file);
  if (!bytes) {
    throw ConfigError("log_artifact", file.string() + " cannot be read; expected a file");
  }
  sender_->append_artifact(path, *bytes);
}

void MlflowTracker::do_flush() {
  sender_->sync();
  sender_->wait_until_sent(limit_of(options_));
}

void MlflowTracker::do_finish(RunStatus status) {
  const char* name = status == RunStatus::kFinished ? "FINISHED"
                     : status == RunStatus::kFailed ? "FAILED"
                                                    : "KILLED";
  sender_->append({{"update", {{"status", name}, {"end_time", milliseconds_since_1970()}}}});
  sender_->wait_until_sent(limit_of(options_));
  sender_->close();
  for (const auto& sender : earlier_) {
    sender->close();
  }
}

bool mlflow_is_usable() {
  return !variable_or("MLFLOW_TRACKING_URI", "").empty() && have_http_client();
}

}  // namespace lockstep::tracking
