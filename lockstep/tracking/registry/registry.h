// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tracking/tracker.h"
#include "lockstep/tracking/tracker_choice.h"

namespace lockstep::tracking {

struct MakeOptions {
  std::filesystem::path project_dir;  ///< The folder of all runs: "runs".
  std::string project_name;           ///< This run: "fashion_mnist", "fashion_mnist/lr=0.1".
};

/// Returns the names that make_tracker() accepts.
std::vector<std::string> tracker_names();

/// Replaces "all" in a list by the trackers that need nothing that is missing here: csv, jsonl,
/// tensorboard and wandb, and mlflow if MLFLOW_TRACKING_URI is set and libcurl is installed. Keeps
/// the list's own choice of a name that it also has.
std::vector<TrackerChoice> with_all_replaced(const std::vector<TrackerChoice>& choices);

/// Creates the tracker of a name or of options; returns the program's own tracker.
///
/// - "tensorboard": an event file in <project_dir>/<project_name>
/// - "csv": <project_dir>/<project_name>/<curve>.csv
/// - "jsonl": <project_dir>/<project_name>/metrics.jsonl
/// - "exec:COMMAND": a program, with a spool in <project_dir>/<project_name>
/// - "mlflow": a server, with a spool in <project_dir>/<project_name>; the experiment is
///   project_name unless the options or the environment name it
/// - "wandb": <project_dir>/<project_name>/wandb/offline-run-<time>-<id>
///
/// Throws ConfigError for an unknown tracker, for an empty project_dir or project_name, and for a
/// project_name outside project_dir. Throws ConfigError, naming the path, if the folder or the file
/// cannot be created.
std::shared_ptr<Tracker> make_tracker(const TrackerChoice& choice, const MakeOptions& options);

}  // namespace lockstep::tracking
