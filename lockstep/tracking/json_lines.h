// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/tracking/tracker.h"

/// Formats what trackers log as JSON objects, one a line: without a newline, with the time. Pure
/// functions but for the time.
namespace lockstep::tracking::json_lines {

std::string config(const nlohmann::json& config);
/// Throws ConfigError for values named "step" or "time"; `where` names the file or program in it.
std::string values(const Values& values, int64_t step, const std::string& where);
std::string histograms(const Histograms& histograms, int64_t step);
std::string text(const Texts& texts, int64_t step);
std::string tables(const Tables& tables, int64_t step);
std::string status(RunStatus status);

}  // namespace lockstep::tracking::json_lines
