// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/tracking/file/append_file.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep::tracking {

/// Writes a new event file into `folder`, for `tensorboard --logdir`. One run is one folder, and a
/// resumed run adds a file.
///
/// log() is one write(2) of a complete record, without buffering. The config appears in the Text
/// tab as "config" and in the HParams tab, nested settings as "optimizer.lr". Scalars have single
/// precision there. Images appear as samples of one tag, tables in the Text tab. A histogram of
/// numbers that are not all finite adds the scalar <name>/non_finite, their count. Costs about 1 kB
/// of memory, and about 40 bytes of file a value.
class TensorBoardTracker final : public Tracker {
 public:
  /// Creates the folder and the file events.out.tfevents.<unix time>.<host>.<pid>.<n>. Throws
  /// ConfigError, naming it, if that fails.
  explicit TensorBoardTracker(const std::filesystem::path& folder);

  std::string name() const override { return "tensorboard"; }
  bool stores(MediaKind /*kind*/) const override { return true; }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void do_store_config(const nlohmann::json& config) override;
  void do_log(const Values& values, int64_t step) override;
  void do_log_images(const ImageBatches& images, int64_t step) override;
  void do_log_histograms(const Histograms& histograms, int64_t step) override;
  void do_log_text(const Texts& texts, int64_t step) override;
  void do_log_tables(const Tables& tables, int64_t step) override;
  void do_flush() override;
  void do_finish(RunStatus status) override;

  AppendFile file_;
  nlohmann::json hparams_;      ///< Null until there is a config.
  std::set<std::string> tags_;  ///< All logged names: the metrics of the HParams tab.
};

}  // namespace lockstep::tracking
