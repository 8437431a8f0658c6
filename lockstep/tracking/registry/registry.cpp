// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/registry/registry.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/tracking/lines/csv_tracker.h"
#include "lockstep/tracking/lines/exec_tracker.h"
#include "lockstep/tracking/lines/jsonl_tracker.h"
#include "lockstep/tracking/mlflow/mlflow_tracker.h"
#include "lockstep/tracking/tensorboard/tensorboard_tracker.h"
#include "lockstep/tracking/wandb/wandb_tracker.h"

namespace lockstep::tracking {
namespace {

using Folder = std::filesystem::path;

/// Describes a built-in tracker.
struct Entry {
  const char* name;
  std::function<std::shared_ptr<Tracker>(
      const Folder& folder, const TrackerChoice& choice, const std::string& project_name)>
      make;
  bool (*is_usable)();  ///< Whether "all" includes it here.
};

bool always() {
  return true;
}

bool never() {
  return false;
}

std::shared_ptr<Tracker> make_mlflow(
    const Folder& folder, const TrackerChoice& choice, const std::string& project_name) {
  auto options = choice.options_or_defaults<MlflowOptions>();
  if (options.experiment_name.empty()) {
    options.experiment_name = project_name;
  }
  return std::make_shared<MlflowTracker>(folder, std::move(options));
}

std::shared_ptr<Tracker> make_wandb(
    const Folder& folder, const TrackerChoice& choice, const std::string& project_name) {
  auto options = choice.options_or_defaults<WandbOptions>();
  if (options.project.empty()) {
    options.project = Environment::process().text("WANDB_PROJECT").value_or(project_name);
  }
  return std::make_shared<WandbTracker>(folder, std::move(options));
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {"csv",
       [](const Folder& folder, const auto&, const auto&) {
         return std::make_shared<CsvTracker>(folder);
       },
       &always},
      {"exec",
       [](const Folder& folder, const TrackerChoice& choice, const auto&) {
         return std::make_shared<ExecTracker>(folder, choice.options_or_defaults<ExecOptions>());
       },
       &never},
      {"jsonl",
       [](const Folder& folder, const auto&, const auto&) {
         return std::make_shared<JsonlTracker>(folder / "metrics.jsonl");
       },
       &always},
      {"mlflow", &make_mlflow, &mlflow_is_usable},
      {"tensorboard",
       [](const Folder& folder, const auto&, const auto&) {
         return std::make_shared<TensorBoardTracker>(folder);
       },
       &always},
      {"wandb", &make_wandb, &always},
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

std::vector<TrackerChoice> with_all_replaced(const std::vector<TrackerChoice>& choices) {
  std::vector<TrackerChoice> result;
  const auto has = [](const std::vector<TrackerChoice>& list, const std::string& name) {
    return std::ranges::any_of(
        list, [&](const TrackerChoice& one) { return !one.is_own() && one.name() == name; });
  };
  for (const TrackerChoice& choice : choices) {
    if (choice.is_own() || choice.name() != "all") {
      result.push_back(choice);
      continue;
    }
    for (const Entry& entry : entries()) {
      if (entry.is_usable() && !has(choices, entry.name) && !has(result, entry.name)) {
        result.emplace_back(entry.name);
      }
    }
  }
  return result;
}

std::shared_ptr<Tracker> make_tracker(const TrackerChoice& choice, const MakeOptions& options) {
  if (choice.is_own()) {
    return choice.tracker();
  }
  for (const Entry& entry : entries()) {
    if (choice.name() == entry.name) {
      return entry.make(run_folder(options), choice, options.project_name);
    }
  }
  const std::vector<std::string> names = tracker_names();
  throw ConfigError(
      "tracking",
      fmt::format(
          "unknown tracker; got '{}', expected one of {}{}",
          choice.name(),
          fmt::join(names, ", "),
          did_you_mean(choice.name(), names)));
}

}  // namespace lockstep::tracking
