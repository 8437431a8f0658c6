// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/tracking/append_file.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep::tracking {

/// Writes one file for each curve, for spreadsheets: "Train/Samples/lr" is Train_Samples_lr.csv,
///
///     step,lr
///     8,0.001
///
/// as DeepSpeed's csv_monitor. Numbers read back as exactly the same double; non-finite ones are
/// NaN, Infinity and -Infinity. Only numbers are stored. Existing files are
/// appended to, so a resumed run continues them. One write(2) a line.
class CsvTracker final : public Tracker {
 public:
  /// Creates the folder if missing. Throws ConfigError, naming the path, if that fails.
  explicit CsvTracker(std::filesystem::path folder);

  std::string name() const override { return "csv"; }

 private:
  void do_store_config(const nlohmann::json& /*config*/) override {}
  void do_log(const Values& values, int64_t step) override;
  void do_flush() override;
  void do_finish(RunStatus status) override;

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<AppendFile>> files_;  ///< By the curve's name.
};

/// Writes one JSON object on each line, for jq, pandas.read_json(lines=True) and people:
///
///     {"config": {"lr": 0.1}, "time": 1732190000.001}
///     {"step": 10, "time": 1732190000.123, "loss": 0.5}
///     {"step": 10, "time": 1732190000.124, "text": {"note": "..."}}
///     {"step": 10, "time": 1732190000.125, "histograms": {"weights": {"counts": [1, 2], ...}}}
///     {"status": "finished", "time": 1732190060.456}
///
/// A line of values has "step". A histogram has the members of Histogram. Images are not stored.
/// "time" is in seconds since 1970. Numbers read back as exactly the same double; non-finite ones
/// are the strings "NaN", "Infinity" and "-Infinity".
///
/// An existing file is appended to, so a resumed run continues it. The later line of a repeated
/// step counts. An incomplete last line of a crash is ended first. One write(2) a line.
class JsonlTracker final : public Tracker {
 public:
  /// Creates parent folders and file if missing. Throws ConfigError, naming the path, if that
  /// fails.
  explicit JsonlTracker(const std::filesystem::path& path);

  std::string name() const override { return "jsonl"; }
  bool stores(MediaKind kind) const override { return kind != MediaKind::kImages; }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void do_store_config(const nlohmann::json& config) override;
  /// Throws ConfigError for values named "step" or "time".
  void do_log(const Values& values, int64_t step) override;
  void do_log_histograms(const Histograms& histograms, int64_t step) override;
  void do_log_text(const Texts& texts, int64_t step) override;
  void do_flush() override;
  void do_finish(RunStatus status) override;
  void append_line(std::string line);

  AppendFile file_;
  bool incomplete_line_;  ///< The file has no newline at its end, and nothing was appended yet.
};

/// Writes a new event file into `folder`, for `tensorboard --logdir`. One run is one folder, and a
/// resumed run adds a file.
///
/// log() is one write(2) of a complete record, without buffering. The config appears in the Text
/// tab as "config" and in the HParams tab, nested settings as "optimizer.lr". Scalars have single
/// precision there. Images appear as samples of one tag. A histogram of numbers that are not all
/// finite adds the scalar <name>/non_finite, their count. Costs about 1 kB of memory, and about 40
/// bytes of file a value.
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
  void do_flush() override;
  void do_finish(RunStatus status) override;

  AppendFile file_;
  nlohmann::json hparams_;      ///< Null until there is a config.
  std::set<std::string> tags_;  ///< All logged names: the metrics of the HParams tab.
};

}  // namespace lockstep::tracking
