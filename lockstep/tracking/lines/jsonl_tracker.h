// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/tracking/file/append_file.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep::tracking {

/// Writes one JSON object on each line, for jq, pandas.read_json(lines=True) and people:
///
///     {"config": {"lr": 0.1}, "time": 1732190000.001}
///     {"step": 10, "time": 1732190000.123, "loss": 0.5}
///     {"step": 10, "time": 1732190000.124, "text": {"note": "..."}}
///     {"step": 10, "time": 1732190000.125, "histograms": {"weights": {"counts": [1, 2], ...}}}
///     {"step": 10, "time": 1732190000.126, "tables": {"answers": {"columns": ["a"], "data":
///     [[1]]}}}
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
  void do_log_tables(const Tables& tables, int64_t step) override;
  void do_flush() override;
  void do_finish(RunStatus status) override;
  void append_line(std::string line);

  AppendFile file_;
  bool incomplete_line_;  ///< The file has no newline at its end, and nothing was appended yet.
};

}  // namespace lockstep::tracking
