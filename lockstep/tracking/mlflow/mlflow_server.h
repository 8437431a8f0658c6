// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/tracking/mlflow/http_client.h"

namespace lockstep::tracking {

/// The status of a request to the server.
enum class RequestStatus {
  kDone,
  kLater,    ///< No answer, a fault of the server, or missing rights: the same may work later.
  kRefused,  ///< The server will not accept it.
};

/// Identifies a run on the server.
struct MlflowRun {
  std::string run_id;
  std::string experiment_id;
  std::string artifact_uri;
};

/// Calls MLflow's REST interface, version 2.0. Each function is one or more requests, which block.
/// error() says why the last one failed. Used by one thread.
/// Source: https://mlflow.org/docs/latest/rest-api.html
class MlflowServer {
 public:
  /// `uri`: "https://host/prefix". Reads MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD,
  /// MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_INSECURE_TLS and MLFLOW_TRACKING_SERVER_CERT_PATH.
  /// Throws ConfigError for an invalid variable, and without libcurl.
  MlflowServer(std::string uri, const std::atomic<bool>& stop);

  /// Continues the run `request["run_id"]`; or finds the run whose tag lockstep.run is
  /// `request["key"]`, or creates it. `request` also has experiment_name, run_name, start_time (in
  /// ms) and tags, an array of {"key", "value"}.
  RequestStatus open_run(const nlohmann::json& request, MlflowRun& run);
  /// Logs {"metrics", "params", "tags"} to the run.
  RequestStatus log_batch(const MlflowRun& run, nlohmann::json batch);
  /// Sets the status and end time of `update`.
  RequestStatus update_run(const MlflowRun& run, nlohmann::json update);
  /// Stores bytes as the run's artifact `path`, through the server's proxy of artifacts.
  RequestStatus put_artifact(
      const MlflowRun& run, const std::string& path, const std::string& bytes);

  const std::string& error() const { return error_; }

 private:
  RequestStatus call(
      const std::string& method,
      const std::string& path,
      const nlohmann::json& body,
      nlohmann::json& result);
  RequestStatus judge(const std::string& what, const HttpAnswer& answer);
  RequestStatus find_experiment(const std::string& name, std::string& id);
  RequestStatus find_run(const nlohmann::json& request, MlflowRun& run);

  std::string uri_;
  HttpClient http_;
  std::string error_;
};

}  // namespace lockstep::tracking
