// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tracking/tracker.h"

namespace lockstep::tracking {

struct MakeOptions {
  std::filesystem::path project_dir;  ///< The folder of all runs: "runs".
  std::string project_name;           ///< This run: "fashion_mnist", "fashion_mnist/lr=0.1".
};

/// Returns the names that make_tracker() accepts.
std::vector<std::string> tracker_names();

/// Creates the tracker of that name.
///
/// - "tensorboard": an event file in <project_dir>/<project_name>
/// - "csv": <project_dir>/<project_name>/<curve>.csv
/// - "jsonl": <project_dir>/<project_name>/metrics.jsonl
///
/// Throws ConfigError for an unknown tracker, for an empty project_dir or project_name, and for a
/// project_name outside project_dir. Throws ConfigError, naming the path, if the folder or the file
/// cannot be created.
std::unique_ptr<Tracker> make_tracker(const std::string& name, const MakeOptions& options);

}  // namespace lockstep::tracking
