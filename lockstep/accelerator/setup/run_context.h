// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "lockstep/accelerator/options/options.h"
#include "lockstep/base/env.h"
#include "lockstep/base/host/world.h"
#include "lockstep/comm/connect/connect.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/mesh_groups.h"

namespace lockstep::internal {

/// The facts of a run that are fixed when its Accelerator is constructed. Unset options are filled
/// in from the environment: `zero`, the accumulation plugin, the project's folders.
struct RunContext {
  AcceleratorOptions options;
  WorldSpec world;
  Group group;                 ///< All processes of the job.
  comm::MeshGroups mesh = {};  ///< Of lines of them.
  /// The connection below `group`; null in one process, and for a group that the program passed.
  std::shared_ptr<comm::RenewableTransport> transport;
  at::Device device = at::kCPU;
  Precision precision = Precision::kNo;
  bool debug = false;
  bool resume = false;  ///< The launcher asks to resume, and there is a project_dir.

  int rank() const { return world.rank; }
  int size() const { return world.size; }
  bool is_distributed() const { return world.size > 1; }
  /// Returns whether other processes hold the same part of the model, and average its gradients.
  bool has_replicas() const { return mesh.replicas.size() > 1; }
};

/// Reads LOCKSTEP_<name>, or else ACCELERATE_<name>.
std::optional<std::string> either_text(const Environment& environment, const std::string& name);

/// Determines this process's rank from `environment` and sets its log label. Unless OMP_NUM_THREADS
/// is set, the process computes with its share of the host's cores from now on. Throws ConfigError
/// as world_from_environment does.
WorldSpec enter_world(const Environment& environment);

/// Determines this process's rank, and connects the processes. Throws ConfigError and CommError as
/// enter_world, connect and the rules of the options do. Collective.
RunContext connect_run(AcceleratorOptions options);

/// Does the same for an existing group. Throws ConfigError if `world` has another rank or size.
RunContext run_in_group(AcceleratorOptions options, WorldSpec world, Group group);

}  // namespace lockstep::internal
