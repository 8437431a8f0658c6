// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tracking/mlflow/mlflow_sender.h"
#include "lockstep/tracking/tracker.h"
#include "lockstep/tracking/tracker_options.h"

namespace lockstep::tracking {

/// Sends a run to a server of MLflow, over REST.
///
/// Settings are parameters, nested ones as "optimizer.lr"; values over 6000 characters are cut, and
/// the artifact config.json has all of them. Images, text and histograms are artifacts:
/// images/<name>/<step>_<i>.png, text/<name>/<step>.txt, histograms/<name>/<step>.json,
/// tables/<name>/<step>.json. Tables are also named in the tag that mlflow.load_table() reads, of
/// which the last 5000 bytes are kept. The server stores NaN, and on SQL the largest double in
/// place of infinity. Characters that it does not accept in names become '_'.
///
/// Every call is a write to a spool; see mlflow_sender.h. A thread sends it, so training never
/// waits for the server. What is not sent when the process ends, or is killed, is sent by the next
/// MlflowTracker of the same server and folder.
class MlflowTracker final : public Tracker {
 public:
  /// `folder`: of the spools. Throws ConfigError without a server's URI, or for one that is not
  /// http(s)://; if libcurl is missing; if the folder cannot be written. Does not ask the server.
  MlflowTracker(const std::filesystem::path& folder, MlflowOptions options);
  ~MlflowTracker() override;

  std::string name() const override { return "mlflow"; }
  bool stores(MediaKind /*kind*/) const override { return true; }
  /// Stores a file as artifact `path` ("models/best.bin") of the run. Throws ConfigError if it
  /// cannot be read.
  void log_artifact(const std::filesystem::path& file, const std::string& path);

 private:
  void do_store_config(const nlohmann::json& config) override;
  void do_log(const Values& values, int64_t step) override;
  void do_log_images(const ImageBatches& images, int64_t step) override;
  void do_log_histograms(const Histograms& histograms, int64_t step) override;
  void do_log_text(const Texts& texts, int64_t step) override;
  void do_log_tables(const Tables& tables, int64_t step) override;
  void do_flush() override;
  void do_finish(RunStatus status) override;
  /// Sends the spools that earlier processes left.
  void adopt_earlier_spools(const std::filesystem::path& folder);

  MlflowOptions options_;
  std::unique_ptr<MlflowSender> sender_;
  std::vector<std::unique_ptr<MlflowSender>> earlier_;
  std::deque<std::string> tables_;  ///< The artifacts of the tag mlflow.loggedArtifacts.
};

/// Returns whether `log_with` "all" includes MLflow: a server is set, and libcurl is there.
bool mlflow_is_usable();

}  // namespace lockstep::tracking
