// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/registry.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/tracking/file_trackers.h"

namespace lockstep::tracking {
namespace {

using Folder = std::filesystem::path;

/// Describes a built-in tracker.
struct Entry {
  const char* name;
  std::function<std::unique_ptr<Tracker>(const Folder& folder)> make;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {"csv", [](const Folder& folder) { return std::make_unique<CsvTracker>(folder); }},
      {"jsonl",
       [](const Folder& folder) {
         return std::make_unique<JsonlTracker>(folder / "metrics.jsonl");
       }},
      {"tensorboard",
       [](const Folder& folder) { return std::make_unique<TensorBoardTracker>(folder); }},
  };
  return all;
}

Folder run_folder(const MakeOptions& options) {
  if (options.project_dir.empty()) {
    throw ConfigError(
        "tracking", "project_dir is empty; expected a folder for all runs; try 'runs'");
  }
  const std::filesystem::path name = options.project_name;
  const bool leads_out =
      name.is_absolute() ||
      std::any_of(name.begin(), name.end(), [](const auto& part) { return part == ".."; });
  if (name.empty() || leads_out) {
    throw ConfigError(
        "tracking",
        fmt::format(
            "project_name must name a folder in {}; got '{}', expected a relative path without "
            "'..'",
            options.project_dir.string(),
            options.project_name));
  }
  return options.project_dir / name;
}

}  // namespace

std::vector<std::string> tracker_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) {
    names.emplace_back(entry.name);
  }
  return names;
}

std::unique_ptr<Tracker> make_tracker(const std::string& name, const MakeOptions& options) {
  for (const Entry& entry : entries()) {
    if (name == entry.name) {
      return entry.make(run_folder(options));
    }
  }
  const std::vector<std::string> names = tracker_names();
  throw ConfigError(
      "tracking",
      fmt::format(
          "unknown tracker; got '{}', expected one of {}{}",
          name,
          fmt::join(names, ", "),
          did_you_mean(name, names)));
}

}  // namespace lockstep::tracking
