// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launcher/process/exit_status.h"

namespace lockstep::launcher {

/// How a start of the job ended that a restart followed, or could have.
struct FailedAttempt {
  int number = 0;  ///< From 0, as in the names of the log folders.
  RankFailure cause;
};

/// What is said, once and last, about a job that failed.
struct FailureReport {
  int ranks = 1;
  RankFailure cause;
  std::vector<RankFailure> also_failed;  ///< By themselves, within the same moment.
  int stopped = 0;                       ///< Ranks that were then told to stop.
  int exit_code = 1;                     ///< Of the job.
  std::string host;
  std::vector<std::string> command;
  std::vector<std::string> last_lines;           ///< Of the cause's stderr.
  std::string log_file{};                        ///< Where all of its stderr is; empty: nowhere.
  std::vector<std::string> doing{};              ///< Of a stall: a line for each rank.
  std::string flight{};                          ///< The flight dump's path; empty: there is none.
  int attempts = 1;                              ///< How often the job was started.
  std::vector<FailedAttempt> failed_attempts{};  ///< The latest of them, this one included.
};

/// A short block for people; ends with a newline.
std::string text_report(const FailureReport& report);

/// One line holding one JSON object; `version` is raised when a field changes its meaning or goes.
std::string json_report(const FailureReport& report);

}  // namespace lockstep::launcher
