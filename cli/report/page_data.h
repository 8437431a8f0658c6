// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "cli/report/run_files.h"

namespace lockstep::cli {

/// Summarises a run for the page, as an object:
///
/// - "name", "status", "steps", "processes", "samples_per_second", "steps_per_second", "seconds",
///   "loss", "lr": numbers or null;
/// - "split": for each rank the seconds of each part in all steps, and their number; "between": the
///   same for the time between steps, of rank 0;
/// - "series": values by step, at most kMostPoints each;
/// - "memory": for each rank the bytes by step;
/// - "curves", "config", "environment", "flight", "notes".
///
/// Numbers that are not finite are null.
nlohmann::ordered_json page_data(const RunFiles& run);

/// The most points of a curve; more are averaged over neighbours.
inline constexpr size_t kMostPoints = 400;

}  // namespace lockstep::cli
