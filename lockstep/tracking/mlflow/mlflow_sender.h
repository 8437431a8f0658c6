// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/tracking/file/spool.h"
#include "lockstep/tracking/mlflow/mlflow_server.h"

namespace lockstep::tracking {

/// Sends one run to a server of MLflow, from a spool in `folder`: the file `<name>.jsonl`, and next
/// to it `<name>.run.json` (the run's id once it exists), `<name>.refused.jsonl` (lines that the
/// server refused) and `<name>.files/` (artifacts).
///
/// The first line creates the run. Lines are the arguments of the server's calls:
///
///     {"run": {...}}  {"params": [...]}  {"metrics": [...]}  {"tags": [...]}
///     {"artifact": {"path": "images/a.png", "file": "0"}}  {"update": {"status": "FINISHED", ...}}
///
/// Consecutive lines of params, metrics and tags are one request, within the server's limits. A
/// refused request is split into its lines, and a refused line is warned of. While the server does
/// not answer, the spool tries again after pauses of up to 30 s.
class MlflowSender {
 public:
  /// Opens the spool, and sends what it has. Throws ConfigError if another process sends it.
  MlflowSender(std::filesystem::path folder, std::string name, const std::string& uri);
  ~MlflowSender();

  void append(const nlohmann::json& line);
  /// Stores `bytes` as the artifact `path` of the run.
  void append_artifact(const std::string& path, const std::string& bytes);
  /// Returns whether everything was sent within `limit`; warns if not.
  bool wait_until_sent(std::chrono::milliseconds limit);
  /// Ends sending. Removes the files if everything was sent.
  void close();
  void sync() { spool_->sync(); }
  const std::filesystem::path& path() const { return spool_->path(); }

 private:
  std::filesystem::path file(const char* suffix) const;
  size_t deliver(const std::vector<std::string>& lines);
  /// Sends the lines from `begin` on that fit into one request. Returns their number, 0 for later.
  size_t deliver_some(const std::vector<nlohmann::json>& lines, size_t begin);
  RequestStatus deliver_line(const nlohmann::json& line);
  RequestStatus open_run(const nlohmann::json& request);
  RequestStatus deliver_artifact(const nlohmann::json& artifact);
  void keep_refused(const nlohmann::json& line);
  void warn_once_of_absence();

  std::filesystem::path folder_;
  std::string name_;
  std::string uri_;
  std::atomic<bool> stop_{false};
  MlflowServer server_;
  MlflowRun run_;
  size_t left_one_by_one_ = 0;  ///< Lines of a refused request, which are sent alone.
  bool absent_ = false;         ///< The server's absence was warned of.
  int64_t artifacts_ = 0;
  std::unique_ptr<Spool> spool_;
};

}  // namespace lockstep::tracking
