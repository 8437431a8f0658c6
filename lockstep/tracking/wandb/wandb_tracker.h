// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/tracking/tracker.h"
#include "lockstep/tracking/tracker_options.h"
#include "lockstep/tracking/wandb/wandb_file.h"

namespace lockstep::tracking {

/// Writes an offline run of Weights & Biases, which `wandb sync FOLDER` uploads:
///
///     <folder>/wandb/offline-run-<time>-<id>/run-<id>.wandb
///     <folder>/wandb/offline-run-<time>-<id>/files/media/images/<name>_<step>_<i>.png
///     <folder>/wandb/offline-run-<time>-<id>/files/media/table/<name>_<step>.table.json
///
/// Each call is a record of history at once, also several of one step; the summary is written by
/// flush() and finish(). Settings, images, histograms, text and tables appear as wandb's own. A
/// resumed program writes another run; with the same `id` wandb appends it to the first. Nothing is
/// sent.
class WandbTracker final : public Tracker {
 public:
  /// Creates the folder. Throws ConfigError if it cannot be written, or the id is no file name.
  WandbTracker(const std::filesystem::path& folder, WandbOptions options);

  std::string name() const override { return "wandb"; }
  bool stores(MediaKind /*kind*/) const override { return true; }
  /// Returns the folder for `wandb sync`.
  const std::filesystem::path& folder() const { return folder_; }
  const std::filesystem::path& path() const { return file_.path(); }
  const std::string& id() const { return options_.id; }

 private:
  void do_store_config(const nlohmann::json& config) override;
  void do_log(const Values& values, int64_t step) override;
  void do_log_images(const ImageBatches& images, int64_t step) override;
  void do_log_histograms(const Histograms& histograms, int64_t step) override;
  void do_log_text(const Texts& texts, int64_t step) override;
  void do_log_tables(const Tables& tables, int64_t step) override;
  void do_flush() override;
  void do_finish(RunStatus status) override;

  void append_run();
  /// Appends a row of history: names, and their values as JSON text.
  void append_history(const std::map<std::string, std::string>& items, int64_t step);
  void append_summary();
  /// Writes a file of the run, in place of an earlier one.
  void write_media(const std::string& path, const std::string& bytes) const;

  WandbOptions options_;
  double start_s_;
  std::filesystem::path folder_;
  WandbFile file_;
  std::map<std::string, std::string> summary_;  ///< The last value of each name, as JSON text.
};

}  // namespace lockstep::tracking
