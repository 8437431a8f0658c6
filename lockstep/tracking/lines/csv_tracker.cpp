// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/lines/csv_tracker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lockstep/tracking/values/non_finite.h"

namespace lockstep::tracking {
namespace {

/// Formats a cell, in quotes if it has a separator.
std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  }
  return quoted + "\"";
}

std::string file_name_of(std::string curve) {
  std::replace(curve.begin(), curve.end(), '/', '_');
  return curve + ".csv";
}

}  // namespace

CsvTracker::CsvTracker(std::filesystem::path folder) : folder_(std::move(folder)) {
  make_folders(folder_);
}

void CsvTracker::do_log(const Values& values, int64_t step) {
  for (const auto& [name, value] : values) {
    std::unique_ptr<AppendFile>& file = files_[name];
    std::string text;
    if (!file) {
      file = std::make_unique<AppendFile>();
      file->open(folder_ / file_name_of(name));
      const auto last = file->last_byte();
      if (!last) {
        text = fmt::format("step,{}\n", cell(name.substr(name.rfind('/') + 1)));
      } else if (*last != '\n') {
        text = "\n";  // Ends the line that a crash left incomplete.
      }
    }
    text += std::isfinite(value) ? fmt::format("{},{}\n", step, value)
                                 : fmt::format("{},{}\n", step, name_of_non_finite(value));
    file->append(std::move(text));
  }
}

void CsvTracker::do_flush() {
  for (const auto& [name, file] : files_) {
    file->sync();
  }
}

void CsvTracker::do_finish(RunStatus /*status*/) {
  for (const auto& [name, file] : files_) {
    file->close();
  }
}

}  // namespace lockstep::tracking
