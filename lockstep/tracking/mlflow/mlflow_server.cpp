// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/mlflow/mlflow_server.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;

constexpr const char* kRunTag = "tags.`lockstep.run` = '{}'";
constexpr size_t kShownBytes = 300;

HttpOptions http_options() {
  const Environment environment = Environment::process();
  HttpOptions options;
  options.user = environment.text("MLFLOW_TRACKING_USERNAME").value_or("");
  options.password = environment.text("MLFLOW_TRACKING_PASSWORD").value_or("");
  options.token = environment.text("MLFLOW_TRACKING_TOKEN").value_or("");
  options.verify_tls = !environment.boolean("MLFLOW_TRACKING_INSECURE_TLS").value_or(false);
  options.ca_file = environment.text("MLFLOW_TRACKING_SERVER_CERT_PATH").value_or("");
  return options;
}

MlflowRun run_of(const json& run) {
  const json& info = run.at("info");
  return {
      info.at("run_id").get<std::string>(),
      info.at("experiment_id").get<std::string>(),
      info.value("artifact_uri", "")};
}

/// Returns the path in the proxy of artifacts: "1/<run>/artifacts" of
/// "mlflow-artifacts:/1/<run>/artifacts" or "mlflow-artifacts://host:5000/1/<run>/artifacts"; empty
/// for another scheme.
std::string proxied_path(const std::string& artifact_uri) {
  const std::string scheme = "mlflow-artifacts:";
  if (!artifact_uri.starts_with(scheme)) {
    return "";
  }
  std::string path = artifact_uri.substr(scheme.size());
  if (path.starts_with("//")) {
    path = path.substr(std::min(path.find('/', 2), path.size()));
  }
  return path.substr(std::min(path.find_first_not_of('/'), path.size()));
}

}  // namespace

MlflowServer::MlflowServer(std::string uri, const std::atomic<bool>& stop)
    : uri_(std::move(uri)), http_(http_options(), stop) {}

RequestStatus MlflowServer::judge(const std::string& what, const HttpAnswer& answer) {
  if (answer.status >= 200 && answer.status < 300) {
    return RequestStatus::kDone;
  }
  if (answer.status == 0) {
    error_ = fmt::format("it does not answer: {}", answer.error);
    return RequestStatus::kLater;
  }
  const json body = json::parse(answer.body, nullptr, false);
  const std::string text =
      body.is_object() && body.contains("message")
          ? body["message"].dump(-1, ' ', false, json::error_handler_t::replace)
          : answer.body;
  error_ = fmt::format(
      "it answers {} with status {}: {}", what, answer.status, text.substr(0, kShownBytes));
  const bool later = answer.status >= 500 || answer.status == 429 || answer.status == 401 ||
                     answer.status == 403 || answer.status == 408;
  return later ? RequestStatus::kLater : RequestStatus::kRefused;
}

RequestStatus MlflowServer::call(
    const std::string& method, const std::string& path, const json& body, json& result) {
  const std::string text =
      body.is_null() ? "" : body.dump(-1, ' ', false, json::error_handler_t::replace);
  const HttpAnswer answer = http_.json(method, uri_ + "/api/2.0/mlflow/" + path, text);
  const std::string name = path.substr(0, path.find('?'));
  const RequestStatus status = judge(name, answer);
  if (status != RequestStatus::kDone) {
    return status;
  }
  result = json::parse(answer.body, nullptr, false);
  if (!result.is_object()) {
    error_ = fmt::format(
        "it answers {} without JSON, so it is no MLflow server: {}",
        name,
        answer.body.substr(0, kShownBytes));
    return RequestStatus::kRefused;
  }
  return RequestStatus::kDone;
}

RequestStatus MlflowServer::find_experiment(const std::string& name, std::string& id) {
  const std::string by_name = "experiments/get-by-name?experiment_name=" + url_encoded(name);
  json result;
  RequestStatus status = call("GET", by_name, nullptr, result);
  if (status == RequestStatus::kRefused) {
    status = call("POST", "experiments/create", {{"name", name}}, result);
    if (status == RequestStatus::kDone) {
      id = result.at("experiment_id").get<std::string>();
      return status;
    }
    if (status == RequestStatus::kRefused) {
      const std::string reason = error_;
      status = call("GET", by_name, nullptr, result);  // Another process may have created it.
      error_ = status == RequestStatus::kRefused ? reason : error_;
    }
  }
  if (status == RequestStatus::kDone) {
    id = result.at("experiment").at("experiment_id").get<std::string>();
  }
  return status;
}

RequestStatus MlflowServer::find_run(const json& request, MlflowRun& run) {
  json result;
  const json search = {
      {"experiment_ids", {run.experiment_id}},
      {"filter", fmt::format(fmt::runtime(kRunTag), request.at("key").get<std::string>())},
      {"max_results", 1}};
  const RequestStatus status = call("POST", "runs/search", search, result);
  if (status == RequestStatus::kDone && result.contains("runs") && !result["runs"].empty()) {
    run = run_of(result["runs"][0]);
  }
  return status;
}

RequestStatus MlflowServer::open_run(const json& request, MlflowRun& run) {
  json result;
  const std::string known = request.value("run_id", "");
  if (!known.empty()) {
    RequestStatus status = call("GET", "runs/get?run_id=" + url_encoded(known), nullptr, result);
    if (status == RequestStatus::kDone) {
      run = run_of(result.at("run"));
      status = update_run(run, {{"status", "RUNNING"}});
    }
    if (status == RequestStatus::kDone && !request.at("tags").empty()) {
      status = log_batch(run, {{"tags", request.at("tags")}});
    }
    return status;
  }
  RequestStatus status =
      find_experiment(request.at("experiment_name").get<std::string>(), run.experiment_id);
  if (status == RequestStatus::kDone) {
    status = find_run(request, run);
  }
  if (status != RequestStatus::kDone || !run.run_id.empty()) {
    return status;
  }
  json tags = request.at("tags");
  tags.push_back({{"key", "lockstep.run"}, {"value", request.at("key")}});
  json create = {
      {"experiment_id", run.experiment_id},
      {"start_time", request.at("start_time")},
      {"tags", tags}};
  if (!request.at("run_name").empty()) {
    create["run_name"] = request.at("run_name");
  }
  status = call("POST", "runs/create", create, result);
  if (status == RequestStatus::kDone) {
    run = run_of(result.at("run"));
  }
  return status;
}

RequestStatus MlflowServer::log_batch(const MlflowRun& run, json batch) {
  json result;
  batch["run_id"] = run.run_id;
  return call("POST", "runs/log-batch", batch, result);
}

RequestStatus MlflowServer::update_run(const MlflowRun& run, json update) {
  json result;
  update["run_id"] = run.run_id;
  return call("POST", "runs/update", update, result);
}

RequestStatus MlflowServer::put_artifact(
    const MlflowRun& run, const std::string& path, const std::string& bytes) {
  const std::string folder = proxied_path(run.artifact_uri);
  if (folder.empty()) {
    error_ = fmt::format(
        "it stores artifacts in {}, which only a process with access to it can write; start it "
        "with --serve-artifacts",
        run.artifact_uri);
    return RequestStatus::kRefused;
  }
  const std::string url = fmt::format(
      "{}/api/2.0/mlflow-artifacts/artifacts/{}",
      uri_,
      url_encoded(folder + "/" + path, /*keep_slashes=*/true));
  return judge("an artifact", http_.put(url, bytes));
}

}  // namespace lockstep::tracking
