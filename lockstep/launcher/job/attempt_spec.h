// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "lockstep/config/settings/job_options.h"
#include "lockstep/launcher/multi_host/control_channel.h"
#include "lockstep/launcher/output/log_files.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/clock.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::launcher {

/// The inputs of an attempt. All pointers must outlive it.
struct AttemptSpec {
  const Program* program = nullptr;               ///< [not null]
  const config::JobOptions* options = nullptr;    ///< [not null]
  const JobPlan* plan = nullptr;                  ///< [not null]
  const LogFolder* logs = nullptr;                ///< Null: no log files.
  int number = 0;                                 ///< Number of previous attempts.
  int master_port = 0;                            ///< The reserved port of rank 0's store.
  std::optional<Clock::time_point> time_limit{};  ///< The end of the whole job.
  ControlChannel* control_channel = nullptr;      ///< Null: this is the only host.

  /// Null in a job of one host.
  NodeSession* session() const {
    return control_channel == nullptr ? nullptr : control_channel->session();
  }
};

}  // namespace lockstep::launcher
