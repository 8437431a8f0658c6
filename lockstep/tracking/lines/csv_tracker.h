// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/tracking/file/append_file.h"
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

}  // namespace lockstep::tracking
