// SPDX-License-Identifier: Apache-2.0
#include "cli/report/run_files.h"

#include <algorithm>
#include <limits>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/report/line_file.h"
#include "cli/report/tracker_files.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kMostReportRanks = 1 << 20;
constexpr const char* kStepsPrefix = "steps_";
constexpr const char* kJsonl = ".jsonl";
constexpr const char* kHowToRecord =
    "set AcceleratorOptions::record_steps, or LOCKSTEP_RECORD_STEPS=1 in the environment, and run "
    "again";

/// Returns the rank in "steps_<rank>.jsonl"; nothing for another name.
std::optional<int> rank_of(const std::string& name) {
  const std::string prefix = kStepsPrefix;
  const std::string suffix = kJsonl;
  if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(suffix)) {
    return std::nullopt;
  }
  const auto rank =
      parse_integer(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
  if (!rank || *rank < 0 || *rank > std::numeric_limits<int>::max()) {
    return std::nullopt;
  }
  return static_cast<int>(*rank);
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  if (error) {
    throw ConfigError(folder.string(), "cannot be read: " + error.message());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_run_file(const fs::path& path) {
  return rank_of(path.filename().string()).has_value() || is_tracker_file(path);
}

/// Returns whether only Lockstep writes files of this name.
bool is_own_file(const fs::path& path) {
  return rank_of(path.filename().string()).has_value() || path.filename() == kMetrics;
}

bool has_files(const fs::path& folder, bool (*is_wanted)(const fs::path&)) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return false;
  }
  const std::vector<fs::path> entries = entries_of(folder);
  return std::any_of(entries.begin(), entries.end(), is_wanted);
}

/// Returns the folders in `path` that have files of a run. If some have files that only Lockstep
/// writes, the others, such as that of a SummaryWriter, do not count.
std::vector<std::string> run_folders_in(const fs::path& path) {
  for (const auto is_wanted : {&is_own_file, &is_run_file}) {
    std::vector<std::string> found;
    for (const fs::path& entry : entries_of(path)) {
      if (has_files(entry, is_wanted)) {
        found.push_back(entry.string());
      }
    }
    if (!found.empty()) {
      return found;
    }
  }
  return {};
}

PartSeconds parts_of(const OrderedJson& line) {
  PartSeconds parts{};
  for (size_t i = 0; i < parts.size(); ++i) {
    parts.at(i) = line.value(kReportParts.at(i), 0.0);
  }
  return parts;
}

RecordedSteps recorded_steps(const OrderedJson& line) {
  RecordedSteps record{
      .step = line.at("step").get<int64_t>(),
      .steps = std::max<int64_t>(line.value("steps", int64_t{1}), 1),
      .time = line.at("time").get<double>(),
      .seconds = line.at("seconds").get<double>(),
      .longest = line.value("longest", 0.0),
      .parts = parts_of(line),
      .samples = line.value("samples", int64_t{0}),
      .loss = std::nullopt,
      .lr = std::nullopt,
      .process_bytes = line.value("process_bytes", int64_t{0}),
      .device_bytes = line.value("device_bytes", int64_t{0})};
  if (line.contains("loss")) {
    record.loss = number_in(line.at("loss"));
  }
  if (line.contains("lr")) {
    record.lr = number_in(line.at("lr"));
  }
  return record;
}

/// Adds lines of one file to `result`.
class StepRecordReader {
 public:
  explicit StepRecordReader(RankRecords& result) : result_(result) {}

  void take(const OrderedJson& line) {
    if (line.contains("format")) {
      take_header(line);
    } else if (line.contains("step")) {
      take_record(recorded_steps(line));
    } else if (line.contains("after_step")) {
      const PartSeconds parts = parts_of(line);
      for (size_t i = 0; i < parts.size(); ++i) {
        result_.between.at(i) += parts.at(i);
      }
    } else if (line.contains("config")) {
      result_.config = nlohmann::json::parse(line.at("config").dump());
    } else if (line.contains("status")) {
      result_.finished_at = line.at("time").get<double>();
    }
  }

 private:
  /// Throws OrderedJson::exception for a value of another type, so that the line counts as damaged.
  void take_header(const OrderedJson& line) {
    const int64_t world = line.value("world", int64_t{1});
    (void)line.value("time", 0.0);
    (void)line.value("host", "");
    (void)line.value("run_id", "");
    (void)line.value("version", 0);
    if (world < 1 || world > kMostReportRanks) {
      throw OrderedJson::other_error::create(501, "the number of ranks is out of range", nullptr);
    }
    result_.header = line;
    result_.finished_at.reset();
    is_first_record_ = true;
    ++result_.processes;
  }

  /// A resumed process repeats the updates after the checkpoint; the later ones count.
  void take_record(const RecordedSteps& record) {
    if (std::exchange(is_first_record_, false)) {
      std::erase_if(result_.records, [&](const RecordedSteps& old) {
        return old.step > record.step - record.steps;
      });
    }
    result_.records.push_back(record);
  }

  RankRecords& result_;
  bool is_first_record_ = true;
};

RankRecords read_records(const fs::path& path, int rank, std::vector<std::string>& notes) {
  constexpr int kVersion = 1;
  RankRecords result;
  result.rank = rank;
  StepRecordReader reader(result);
  note_damage(
      path, read_json_lines(path, [&](const OrderedJson& line) { reader.take(line); }), notes);
  const OrderedJson& header = result.header;
  if (!header.is_object() || header.value("format", "") != "lockstep-steps") {
    throw ConfigError(
        path.string(),
        "is not a file of step records; expected lines with \"format\": \"lockstep-steps\"");
  }
  if (header.value("version", 0) != kVersion) {
    throw ConfigError(
        path.string(),
        fmt::format(
            "has step records of version {}; expected version {}; read it with the build that "
            "wrote it",
            header.value("version", OrderedJson()).dump(),
            kVersion));
  }
  return result;
}

/// Drops ranks that only an earlier, larger job had, and notes absent ones.
void check_ranks(RunFiles& run) {
  if (run.ranks.empty()) {
    run.notes.push_back(fmt::format(
        "{} has no steps_<rank>.jsonl: the times of steps, memory and environment are unknown; {}",
        run.folder.string(),
        kHowToRecord));
    return;
  }
  const auto newest = std::max_element(
      run.ranks.begin(), run.ranks.end(), [](const RankRecords& one, const RankRecords& other) {
        return one.header.value("time", 0.0) < other.header.value("time", 0.0);
      });
  const int world = newest->header.value("world", 1);
  std::erase_if(run.ranks, [&](const RankRecords& rank) { return rank.rank >= world; });
  std::vector<int> absent;
  for (int rank = 0, i = 0; rank < world; ++rank) {
    const bool is_there =
        i < static_cast<int>(run.ranks.size()) && run.ranks[static_cast<size_t>(i)].rank == rank;
    i += is_there ? 1 : 0;
    if (!is_there) {
      absent.push_back(rank);
    }
  }
  if (!absent.empty()) {
    run.notes.push_back(fmt::format(
        "{} of {} has no file of step records in {}; another host writes to its own disk: copy its "
        "steps_<rank>.jsonl to this folder",
        ranks_text(absent),
        world,
        run.folder.string()));
  }
}

}  // namespace

fs::path find_run_folder(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw ConfigError(
        path.string(),
        "does not exist; expected the folder of a run: AcceleratorOptions::project_dir, or the "
        "folder of its logs");
  }
  if (!fs::is_directory(path, error)) {
    if (!is_run_file(path)) {
      throw ConfigError(
          path.string(),
          "is not a file of a run; expected a folder, steps_<rank>.jsonl, metrics.jsonl, an event "
          "file of TensorBoard, or a curve of the tracker csv");
    }
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
  }
  if (has_files(path, &is_run_file)) {
    return path;
  }
  const std::vector<std::string> found = run_folders_in(path);
  if (found.empty()) {
    throw ConfigError(
        path.string(),
        fmt::format(
            "has no steps_<rank>.jsonl, metrics.jsonl, event file of TensorBoard or curve of the "
            "tracker csv, nor has a folder in it; expected the folder of a run; {}; \"jsonl\" in "
            "log_with adds the values that the program logs",
            kHowToRecord));
  }
  if (found.size() > 1) {
    throw ConfigError(
        path.string(),
        fmt::format(
            "has {} runs: {}; expected one; try lockstep report {}",
            found.size(),
            fmt::join(found, ", "),
            found.front()));
  }
  return found.front();
}

RunFiles read_run_files(const fs::path& path) {
  RunFiles run;
  run.folder = find_run_folder(path);
  run.name = path.string();
  for (const fs::path& entry : entries_of(run.folder)) {
    if (const auto rank = rank_of(entry.filename().string())) {
      run.ranks.push_back(read_records(entry, *rank, run.notes));
    }
  }
  std::sort(
      run.ranks.begin(), run.ranks.end(), [](const RankRecords& one, const RankRecords& other) {
        return one.rank < other.rank;
      });
  read_tracker_files(run);
  check_ranks(run);
  if (!run.ranks.empty()) {
    const RankRecords& first = run.ranks.front();
    run.config = first.config.is_null() ? run.config : first.config;
    run.status = first.finished_at ? "finished" : "";
  }
  return run;
}

}  // namespace lockstep::cli
