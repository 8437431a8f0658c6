// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launcher/plan/cores.h"
#include "lockstep/launcher/plan/job_options.h"
#include "lockstep/launcher/plan/rank_environment.h"
#include "lockstep/launcher/output/stream_choice.h"

namespace lockstep::launcher {

/// A host of a job and its ranks.
struct PlannedHost {
  std::string name{};        ///< Empty for another host of a job without a hostfile.
  std::vector<int> slots{};  ///< One a rank, in the order of LOCAL_RANK.
  bool all_slots = true;     ///< All that the hostfile gives it.
  int first_rank = 0;
};

/// What becomes of the output of a local rank.
struct OutputPlan {
  Streams files;       ///< Copied to a file.
  Streams files_only;  ///< Not shown, unless its file cannot be written.
  bool shown = true;
};

/// Who runs where: JobOptions made definite, before anything is started.
struct JobPlan {
  std::vector<PlannedHost> hosts;  ///< One at least, in the order of their ranks.
  size_t here = 0;                 ///< Which of them this one is.
  bool includes_this_host = true;  ///< Else `here` means nothing: the hostfile names others only.
  JobLayout common;                ///< What holds on every host; host_layout() has the rest.
  ThreadPlan threads;
  /// Of this host's local ranks; empty: not tied to cores.
  std::vector<std::vector<int>> cores;
  std::vector<OutputPlan> outputs;  ///< Of this host's local ranks.

  int world_size() const { return common.world_size; }
  /// The ranks of this host alone.
  int local_size() const { return static_cast<int>(hosts[here].slots.size()); }
  bool is_local() const { return hosts.size() == 1 && includes_this_host; }
  bool needs_files() const;
};

/// Makes the plan, reading the hostfile and kEnvFile if there is a hostfile. `inherited`: the
/// launcher's environment. ConfigError where the options do not agree with each other or with this
/// machine: among others a node that is not there, more ranks than slots, more than
/// kMaxRanksPerCore ranks a core, and what the parsers of the texts in it refuse.
JobPlan plan_job(const JobOptions& options, const std::vector<std::string>& inherited);

/// The plan of a launcher that another one has started: `hosts` are known, and this is that of
/// index `here`. Otherwise as plan_job().
JobPlan plan_node(
    const JobOptions& options,
    std::vector<PlannedHost> hosts,
    size_t here,
    const std::vector<std::string>& inherited);

/// What the ranks of the host with that index have in common. Its master_port is the options',
/// which is 0 for any free one, and it knows neither the program nor the terminal.
JobLayout host_layout(const JobPlan& plan, size_t host);

}  // namespace lockstep::launcher
