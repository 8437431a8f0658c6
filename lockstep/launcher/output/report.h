// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launcher/process/exit_status.h"

namespace lockstep::launcher {

/// The result of an attempt that a restart followed, or could have followed.
struct FailedAttempt {
  int number = 0;  ///< From 0, as in the names of log folders.
  RankFailure cause;
};

/// The final report on a failed job.
struct FailureReport {
  int ranks = 1;
  RankFailure cause;
  std::vector<RankFailure> also_failed;  ///< Ranks that failed on their own, at the same time.
  int stopped = 0;                       ///< Ranks that were then stopped.
  int exit_code = 1;                     ///< The job's.
  std::string host;
  std::vector<std::string> command;
  std::vector<std::string> last_lines;     ///< The end of the cause's stderr.
  std::string log_file{};                  ///< The file with the complete stderr; empty: none.
  std::vector<std::string> rank_states{};  ///< For a stall: a line for each rank.
  std::string flight{};                    ///< The flight dump's path; empty: there is none.
  int attempts = 1;                        ///< Number of starts of the job.
  std::vector<FailedAttempt> failed_attempts{};  ///< The latest ones, including this one.
};

/// Renders a short block for people; ends with a newline.
std::string text_report(const FailureReport& report);

/// Renders one line of JSON. `version` grows when a field changes its meaning or is removed.
std::string json_report(const FailureReport& report);

}  // namespace lockstep::launcher
