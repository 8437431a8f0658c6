// SPDX-License-Identifier: Apache-2.0
#include "cli/report/tracker_files.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "cli/report/line_file.h"
#include "lockstep/base/env.h"
#include "lockstep/tracking/tensorboard/event_file.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

/// Values by the curve's name and step. The later value of a step counts.
using Values = std::map<std::string, std::map<int64_t, double>>;

/// Returns whether the first line is that of CsvTracker.
bool is_curve_file(const fs::path& path) {
  std::error_code error;
  if (path.extension() != ".csv" || !fs::is_regular_file(path, error)) {
    return false;
  }
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) && line.starts_with("step,");
}

bool is_event_file(const fs::path& path) {
  std::error_code error;
  return tracking::is_event_file_name(path.filename().string()) && fs::is_regular_file(path, error);
}

/// Returns the entries of a folder for which `is_wanted` is true, by name.
std::vector<fs::path> files_in(const fs::path& folder, bool (*is_wanted)(const fs::path&)) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_wanted(entry->path())) {
      files.push_back(entry->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

void add_curves(const Values& values, RunFiles& run) {
  for (const auto& [name, points] : values) {
    run.curves.push_back({.name = name, .points = {points.begin(), points.end()}});
  }
}

void read_metrics(const fs::path& path, RunFiles& run) {
  Values values;
  const auto take = [&](const OrderedJson& line) {
    if (line.contains("config")) {
      run.config = nlohmann::json::parse(line.at("config").dump());
      run.status.clear();  // A resumed run.
    } else if (line.contains("status")) {
      run.status = line.at("status").get<std::string>();
    } else {
      const auto step = line.at("step").get<int64_t>();
      for (const auto& [name, value] : line.items()) {
        // Text, histograms and tables are objects.
        if (name != "step" && name != "time" && !value.is_object()) {
          values[name][step] = number_in(value);
        }
      }
    }
  };
  note_damage(path, read_json_lines(path, take), run.notes);
  add_curves(values, run);
}

/// Reads the files of a run and of its resumptions, which are in the order of time by name.
void read_event_files(const std::vector<fs::path>& paths, RunFiles& run) {
  Values values;
  for (const fs::path& path : paths) {
    const tracking::EventFile file = tracking::read_event_file(path);
    for (const auto& [name, points] : file.scalars) {
      for (const auto& [step, value] : points) {
        values[name][step] = value;
      }
    }
    run.config = file.config.is_null() ? run.config : file.config;
    run.status = file.status;
    if (!file.is_complete) {
      run.notes.push_back(
          path.string() +
          ": a record is damaged or incomplete, so it and what follows are left out; probably the "
          "process was killed while it wrote, or the disk was full");
    }
  }
  add_curves(values, run);
}

/// Reads the curves of CsvTracker. The name of a file is that of its curve, with '_' for '/'.
void read_curve_files(const std::vector<fs::path>& paths, RunFiles& run) {
  Values values;
  for (const fs::path& path : paths) {
    auto& points = values[path.stem().string()];
    bool is_first = true;
    const auto take = [&](const std::string& line) {
      if (std::exchange(is_first, false)) {
        return true;
      }
      const size_t comma = line.find(',');
      const auto step = parse_integer(line.substr(0, comma));
      if (!step || comma == std::string::npos) {
        return false;
      }
      const std::string text = line.substr(comma + 1);
      try {
        const bool is_name = text.ends_with("NaN") || text.ends_with("Infinity");
        points[*step] = number_in(is_name ? OrderedJson(text) : OrderedJson::parse(text));
        return true;
      } catch (const OrderedJson::exception&) {
        return false;
      }
    };
    note_damage(path, read_lines(path, take), run.notes);
  }
  add_curves(values, run);
}

}  // namespace

bool is_tracker_file(const fs::path& path) {
  return path.filename() == kMetrics || is_event_file(path) || is_curve_file(path);
}

void read_tracker_files(RunFiles& run) {
  std::error_code error;
  if (fs::exists(run.folder / kMetrics, error)) {
    read_metrics(run.folder / kMetrics, run);
  } else if (const auto events = files_in(run.folder, &is_event_file); !events.empty()) {
    read_event_files(events, run);
  } else if (const auto curves = files_in(run.folder, &is_curve_file); !curves.empty()) {
    read_curve_files(curves, run);
  } else {
    run.notes.push_back(fmt::format(
        "{} has no files of the trackers jsonl, tensorboard and csv: the values that the program "
        "logs are not shown; add \"jsonl\" to AcceleratorOptions::log_with, and run again",
        run.folder.string()));
  }
}

}  // namespace lockstep::cli
