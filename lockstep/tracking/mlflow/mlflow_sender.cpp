// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/mlflow/mlflow_sender.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;

// Limits of one request, which the server checks.
constexpr size_t kMostMetrics = 1000;
constexpr size_t kMostParams = 100;
constexpr size_t kMostTags = 100;

bool is_batch_line(const json& line) {
  return line.contains("metrics") || line.contains("params") || line.contains("tags");
}

/// Appends the line's entries, if the request stays within the limits.
bool append_if_it_fits(json& batch, const json& line) {
  const auto size_with = [&](const char* key) {
    return batch.value(key, json::array()).size() + line.value(key, json::array()).size();
  };
  const size_t metrics = size_with("metrics");
  const size_t params = size_with("params");
  const size_t tags = size_with("tags");
  if (metrics > kMostMetrics || params > kMostParams || tags > kMostTags ||
      metrics + params + tags > kMostMetrics) {
    return false;
  }
  for (const char* key : {"metrics", "params", "tags"}) {
    for (const json& entry : line.value(key, json::array())) {
      batch[key].push_back(entry);
    }
  }
  return true;
}

}  // namespace

MlflowSender::MlflowSender(std::filesystem::path folder, std::string name, const std::string& uri)
    : folder_(std::move(folder)), name_(std::move(name)), uri_(uri), server_(uri, stop_) {
  const json known = json::parse(file_bytes(file(".run.json")).value_or(""), nullptr, false);
  if (known.is_object()) {
    run_ = {
        known.value("run_id", ""),
        known.value("experiment_id", ""),
        known.value("artifact_uri", "")};
  }
  spool_ = std::make_unique<Spool>(
      file(".jsonl"), Spool::Options{}, [this](const std::vector<std::string>& lines) {
        return deliver(lines);
      });
}

MlflowSender::~MlflowSender() {
  stop_ = true;
  spool_.reset();
}

std::filesystem::path MlflowSender::file(const char* suffix) const {
  return folder_ / (name_ + suffix);
}

void MlflowSender::append(const json& line) {
  spool_->append(line.dump(-1, ' ', false, json::error_handler_t::replace));
}

void MlflowSender::append_artifact(const std::string& path, const std::string& bytes) {
  make_folders(file(".files"));
  const std::string name = std::to_string(artifacts_++);
  AppendFile stored;
  stored.open(file(".files") / name);
  stored.append(bytes);
  stored.close();
  append({{"artifact", {{"path", path}, {"file", name}}}});
}

bool MlflowSender::wait_until_sent(std::chrono::milliseconds limit) {
  if (spool_->wait_until_delivered(limit)) {
    return true;
  }
  log_warning(fmt::format(
      "[mlflow] {} bytes are not sent to {} yet; the next run with the same folder sends them from "
      "{}",
      spool_->pending_bytes(),
      uri_,
      path().string()));
  return false;
}

void MlflowSender::close() {
  stop_ = true;
  if (spool_->close()) {
    std::error_code ignored;
    std::filesystem::remove(file(".run.json"), ignored);
    std::filesystem::remove_all(file(".files"), ignored);
  }
}

size_t MlflowSender::deliver(const std::vector<std::string>& lines) {
  std::vector<json> parsed;
  for (const std::string& line : lines) {
    parsed.push_back(json::parse(line, nullptr, false));
  }
  size_t done = 0;
  while (done < parsed.size()) {
    const size_t count = deliver_some(parsed, done);
    if (count == 0) {
      return done;
    }
    done += count;
    if (absent_) {
      absent_ = false;
      log_info(fmt::format("[mlflow] {} answers again; stored values are sent", uri_));
    }
  }
  return done;
}

size_t MlflowSender::deliver_some(const std::vector<json>& lines, size_t begin) {
  json batch = json::object();
  size_t count = 0;
  const size_t most = left_one_by_one_ > 0 ? 1 : lines.size();
  while (count < most && begin + count < lines.size() && is_batch_line(lines[begin + count]) &&
         append_if_it_fits(batch, lines[begin + count])) {
    ++count;
  }
  const RequestStatus status =
      count > 0 ? (run_.run_id.empty() ? RequestStatus::kRefused : server_.log_batch(run_, batch))
                : deliver_line(lines[begin]);
  if (status == RequestStatus::kLater) {
    if (!stop_) {
      warn_once_of_absence();
    }
    return 0;
  }
  if (status == RequestStatus::kRefused && count > 1) {
    left_one_by_one_ = count;
    return deliver_some(lines, begin);
  }
  left_one_by_one_ -= left_one_by_one_ > 0 ? 1 : 0;
  if (status == RequestStatus::kRefused) {
    keep_refused(lines[begin]);
  }
  return std::max<size_t>(count, 1);
}

RequestStatus MlflowSender::deliver_line(const json& line) {
  if (!line.is_object()) {  // A crash of the machine left it incomplete.
    return RequestStatus::kRefused;
  }
  if (line.contains("run")) {
    return open_run(line.at("run"));
  }
  if (line.contains("artifact")) {
    return deliver_artifact(line.at("artifact"));
  }
  if (line.contains("update")) {
    return server_.update_run(run_, line.at("update"));
  }
  return RequestStatus::kRefused;
}

RequestStatus MlflowSender::open_run(const json& request) {
  if (!run_.run_id.empty()) {
    return RequestStatus::kDone;
  }
  MlflowRun run;
  const RequestStatus status = server_.open_run(request, run);
  if (status == RequestStatus::kRefused) {
    throw Error("mlflow", fmt::format("{} refuses the run; {}", uri_, server_.error()));
  }
  if (status == RequestStatus::kDone) {
    run_ = run;
    const json known = {
        {"run_id", run.run_id},
        {"experiment_id", run.experiment_id},
        {"artifact_uri", run.artifact_uri}};
    std::ofstream(file(".run.json")) << known.dump() << "\n";
  }
  return status;
}

RequestStatus MlflowSender::deliver_artifact(const json& artifact) {
  const std::filesystem::path stored = file(".files") / artifact.at("file").get<std::string>();
  const auto bytes = file_bytes(stored);
  if (!bytes) {
    log_warning(fmt::format("[mlflow] {} cannot be read; it is not sent", stored.string()));
    return RequestStatus::kDone;
  }
  const RequestStatus status =
      server_.put_artifact(run_, artifact.at("path").get<std::string>(), *bytes);
  if (status == RequestStatus::kDone) {
    std::error_code ignored;
    std::filesystem::remove(stored, ignored);
  }
  return status;
}

void MlflowSender::keep_refused(const json& line) {
  log_warning(fmt::format(
      "[mlflow] {} refuses values; {}; they are kept in {}",
      uri_,
      server_.error(),
      file(".refused.jsonl").string()));
  AppendFile refused;
  refused.open(file(".refused.jsonl"));
  refused.append(line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
}

void MlflowSender::warn_once_of_absence() {
  if (!std::exchange(absent_, true)) {
    log_warning(fmt::format(
        "[mlflow] {} cannot be used; {}; values are stored in {}, and sent when it can",
        uri_,
        server_.error(),
        path().string()));
  }
}

}  // namespace lockstep::tracking
