// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/world.h"
#include "lockstep/comm/connect.h"
#include "lockstep/comm/group.h"

namespace lockstep {

/// A world, and the group of all its ranks.
struct Connected {
  WorldSpec world;
  Group group;
};

/// What DeepSpeed's function of that name takes. What is not set is found out.
struct InitDistributedOptions {
  /// "nccl": tensors on GPUs by NCCL or not at all; "gloo": everything by Gloo; "shm": shared
  /// memory, on one host. Not set: the best of what there is.
  std::optional<std::string> dist_backend = std::nullopt;
  /// False: RANK and WORLD_SIZE alone say who this process is, not the variables of MPI and SLURM.
  bool auto_mpi_discovery = true;
  /// Instead of a port of Lockstep's choice, where MASTER_PORT is not set.
  std::optional<int> distributed_port = std::nullopt;
  /// Say in a line who has met, and how bytes travel.
  bool verbose = true;
  /// How long an operation may take. Not set: LOCKSTEP_TIMEOUT_MS, else DEEPSPEED_TIMEOUT, in
  /// minutes, else ten minutes.
  std::optional<comm::Milliseconds> timeout = std::nullopt;
  /// "env://", or "tcp://host:port" of rank 0, with `rank` and `world_size`.
  std::string init_method = "env://";
  std::optional<int> rank = std::nullopt;
  std::optional<int> world_size = std::nullopt;
};

/// Meets the other ranks of the job, once a process: what comes after it, `initialize` too, finds
/// them met. Returns the world and the group of all, for collectives of the program's own. Called
/// again it returns the same.
///
/// ConfigError for a backend that there is not, and for a second call that asks for something else
/// than the first; CommError as connect(). Collective, the first time. Thread safety: none.
Connected init_distributed(const InitDistributedOptions& options = {});

/// Whether init_distributed, or an initialize(), has met the others.
bool is_distributed_initialized();

/// Lets go of the group; engines that have it keep it for as long as they live. At the end of the
/// process it happens by itself. Never communicates.
void destroy_process_group();

// --- for initialize()
/// Who this process is: as it has met the others, or will.
WorldSpec world_to_connect();
/// The others, met as init_distributed has met them, or else now and with `options`. ConfigError if
/// they were met otherwise than `options`, unless these are what the environment says.
Connected connected_once(const ConnectOptions& options);

}  // namespace lockstep
