// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/settings/job_options.h"
#include "lockstep/launcher/output/stream_choice.h"
#include "lockstep/launcher/plan/cores.h"
#include "lockstep/launcher/plan/rank_environment.h"
#include "lockstep/mesh/mesh_shape.h"

namespace lockstep::launcher {

/// A host of a job and its ranks.
struct PlannedHost {
  std::string name{};        ///< Empty for another host of a job without a hostfile.
  std::vector<int> slots{};  ///< One for each rank, in the order of LOCAL_RANK.
  bool all_slots = true;     ///< All slots of the hostfile.
  int first_rank = 0;
};

/// The destination of a local rank's output.
struct OutputPlan {
  Streams files;       ///< Copied to a file.
  Streams files_only;  ///< Not shown, unless the file cannot be written.
  bool shown = true;
};

/// The hosts, ranks and environment of a job, computed from JobOptions before anything is started.
struct JobPlan {
  std::vector<PlannedHost> hosts;  ///< At least one, in the order of their ranks.
  size_t here = 0;                 ///< The index of this host.
  /// False: the hostfile names only other hosts, and `here` is unused.
  bool includes_this_host = true;
  std::optional<MeshShape> mesh;  ///< Resolved; without one the program decides.
  HostEnvironment common;         ///< Common to all hosts; host_environment() adds a host's values.
  ThreadPlan threads;
  /// For this host's local ranks; empty without binding.
  std::vector<std::vector<int>> cores;
  std::vector<OutputPlan> outputs;  ///< For this host's local ranks.

  int world_size() const { return common.world_size; }
  /// Returns the number of ranks of this host.
  int local_size() const { return static_cast<int>(hosts[here].slots.size()); }
  bool is_local() const { return hosts.size() == 1 && includes_this_host; }
  bool needs_files() const;
};

/// Computes the plan; reads the hostfile, and kEnvFile with a hostfile. `inherited` is the
/// launcher's environment. Throws ConfigError if the options contradict each other or this machine,
/// for example with more ranks than slots, or more than kMaxRanksPerCore ranks per core.
JobPlan plan_job(const config::JobOptions& options, const std::vector<std::string>& inherited);

/// Computes the plan of a launcher that another one has started, as plan_job() does. `hosts` are
/// known; `here` is the index of this host.
JobPlan plan_node(
    const config::JobOptions& options,
    std::vector<PlannedHost> hosts,
    size_t here,
    const std::vector<std::string>& inherited);

/// Returns the environment of the ranks of the host with that index. Its master_port is that of the
/// options, 0 for any free one; program and terminal are not set.
HostEnvironment host_environment(const JobPlan& plan, size_t host);

}  // namespace lockstep::launcher
