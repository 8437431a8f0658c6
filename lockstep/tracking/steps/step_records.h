// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/tracking/file/append_file.h"
#include "lockstep/tracking/steps/loop_timer.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep::tracking {

/// Describes consecutive updates of one process.
struct StepRecord {
  int64_t step = 0;   ///< The number of the last update.
  int64_t steps = 0;  ///< Updates, including skipped ones.
  int64_t skipped = 0;
  PartTimes times{};
  int64_t longest_ns = 0;                     ///< Time of the longest update.
  int64_t samples = 0;                        ///< Rows of this process's batches.
  std::optional<double> loss = std::nullopt;  ///< This process's mean loss.
  std::optional<double> lr = std::nullopt;    ///< The last update's, of the first parameter group.
  int64_t process_bytes = 0;                  ///< Resident memory; 0: unknown.
  int64_t device_bytes = 0;                   ///< Peak of the allocator's memory; 0: no device.
};

/// Returns "steps_<rank>.jsonl".
std::string step_file_name(int rank);

/// Writes the step records of one process, for `lockstep report`. Each line is a JSON object:
///
///     {"format": "lockstep-steps", "version": 1, "rank": 0, "world": 2, ...}
///     {"config": {"lr": 0.1}}
///     {"after_step": 0, "time": 1732190000.123, "seconds": 1.5, "other": 1.5, ...}
///     {"step": 40, "steps": 40, "time": 1732190000.323, "seconds": 0.2, "data": 0.01, ...}
///     {"status": "finished", "time": 1732190060.456}
///
/// The first line begins a process; a resumed run appends another one. A line with "after_step" has
/// the time between two updates: the start, evaluations, saves between epochs. Times are in seconds
/// and "time" in seconds since 1970. Non-finite numbers are "NaN", "Infinity" and "-Infinity".
///
/// One write(2) a line, so the file of a killed process ends with a complete line. If a line cannot
/// be written (a full disk), it logs a warning and writes no more, since one process must not stop
/// while others continue.
class StepRecordWriter {
 public:
  /// Creates folders and file if missing; throws ConfigError, naming the path, if that fails.
  /// Writes `header` with "format" and "version".
  StepRecordWriter(const std::filesystem::path& path, const nlohmann::ordered_json& header);

  void write_config(const nlohmann::json& config);
  void write_step(const StepRecord& record);
  /// Writes the time after update `step` that belongs to no update.
  void write_between(int64_t step, const PartTimes& times);
  void write_status(RunStatus status);

 private:
  void append(std::string_view line);
  void begin_line(const char* key, int64_t value, const PartTimes& times);
  void end_line();

  AppendFile file_;
  bool failed_ = false;
  std::string line_;  ///< Reused.
};

}  // namespace lockstep::tracking
