// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/ending.h"

namespace lockstep::launcher {

/// What is said, once and last, about a job that failed.
struct FailureReport {
  int ranks = 1;
  RankFailure cause;
  std::vector<RankFailure> also_failed;  ///< By themselves, within the same moment.
  int stopped = 0;                       ///< Ranks that were then told to stop.
  int exit_code = 1;                     ///< Of the job.
  std::string host;
  std::vector<std::string> command;
  std::vector<std::string> last_lines;  ///< Of the cause's stderr.
};

/// A short block for people; ends with a newline.
std::string text_report(const FailureReport& report);

/// One line holding one JSON object; `version` is raised when a field changes its meaning or goes.
std::string json_report(const FailureReport& report);

/// This machine's name.
std::string host_name();

}  // namespace lockstep::launcher
