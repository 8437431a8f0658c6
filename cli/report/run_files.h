// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/watch/flight_dump.h"

namespace lockstep::cli {

/// The parts of a step's time, in the order of RecordedSteps::parts. The names are those of the
/// files.
inline constexpr std::array<const char*, 7> kReportParts = {
    "data", "forward", "backward", "optimizer", "communication", "checkpoint", "other"};

/// Seconds of each part.
using PartSeconds = std::array<double, kReportParts.size()>;

/// One line of a file of step records: consecutive updates of one process.
struct RecordedSteps {
  int64_t step = 0;  ///< The last update.
  int64_t steps = 1;
  double time = 0;  ///< Seconds since 1970, at its end.
  double seconds = 0;
  double longest = 0;  ///< Seconds of the longest update.
  PartSeconds parts{};
  int64_t samples = 0;
  std::optional<double> loss;  ///< May be NaN.
  std::optional<double> lr;
  int64_t process_bytes = 0;
  int64_t device_bytes = 0;
};

/// The content of one steps_<rank>.jsonl, without updates that a resumed run repeated.
struct RankRecords {
  int rank = 0;
  std::vector<RecordedSteps> records;
  PartSeconds between{};  ///< Time between updates: start, evaluations, saves between epochs.
  nlohmann::ordered_json header;  ///< Of the last process.
  nlohmann::json config;          ///< Null if the program passed none.
  std::optional<double> finished_at;
  int processes = 0;  ///< Headers: the first start, and each resume.
};

/// The values that the program logged under one name, by step.
struct Curve {
  std::string name;
  std::vector<std::pair<int64_t, double>> points;
};

/// The contents of a run's files.
struct RunFiles {
  std::filesystem::path folder;    ///< The folder of steps_<rank>.jsonl and metrics.jsonl.
  std::string name;                ///< The path that the user gave.
  std::vector<RankRecords> ranks;  ///< By rank; without ranks that a smaller resumed run lacks.
  std::vector<Curve> curves;       ///< By name.
  nlohmann::json config;           ///< Null if no file has one.
  std::string status;              ///< "finished", "failed", "killed"; empty: no end is recorded.
  std::optional<watch::FlightDump> flight;
  std::filesystem::path flight_path;
  std::vector<std::string> notes;  ///< What is absent or damaged, and what to do.
};

/// Returns the folder of the files of run `path`: itself, its only subfolder with such files, or
/// the folder of such a file. Throws ConfigError, naming it, if there is none, or more than one.
std::filesystem::path find_run_folder(const std::filesystem::path& path);

/// Reads the files of a run. Lines that are not complete become a note. Throws ConfigError, naming
/// the file, for one that cannot be read or is no file of this kind.
RunFiles read_run_files(const std::filesystem::path& path);

}  // namespace lockstep::cli
