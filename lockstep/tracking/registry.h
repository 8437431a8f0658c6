// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tracking/tracker.h"

namespace lockstep::tracking {

struct MakeOptions {
  std::filesystem::path project_dir;  ///< Where all runs are: "runs".
  std::string project_name;           ///< This one: "fashion_mnist", "fashion_mnist/lr=0.1".
};

/// The names make_tracker() knows.
std::vector<std::string> tracker_names();

/// The tracker of that name, ready to write.
///
/// - "tensorboard": an event file in <project_dir>/<project_name>
/// - "csv": <project_dir>/<project_name>/<curve>.csv
/// - "jsonl": <project_dir>/<project_name>/metrics.jsonl
///
/// ConfigError for another name; for an empty folder or name, or a name that leads out of the
/// folder; and, naming the path, if the folder or the file cannot be created.
std::unique_ptr<Tracker> make_tracker(const std::string& name, const MakeOptions& options);

}  // namespace lockstep::tracking
