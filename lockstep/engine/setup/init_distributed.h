// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/host/world.h"
#include "lockstep/comm/connect/connect.h"
#include "lockstep/comm/group.h"

namespace lockstep {

/// A world, and the group of all its ranks.
struct Connected {
  WorldSpec world;
  Group group;
};

/// Options of DeepSpeed's function of that name. Unset ones are detected.
struct InitDistributedOptions {
  /// "nccl": GPU tensors use NCCL or fail; "gloo": all operations use Gloo; "shm": shared memory,
  /// on one host. Not set: the best available.
  std::optional<std::string> dist_backend = std::nullopt;
  /// False: only RANK and WORLD_SIZE are read, not the variables of MPI and SLURM.
  bool auto_mpi_discovery = true;
  /// Replaces Lockstep's choice of a port if MASTER_PORT is not set.
  std::optional<int> distributed_port = std::nullopt;
  /// Logs a line with the ranks and the transport.
  bool verbose = true;
  /// Timeout of an operation. Not set: LOCKSTEP_TIMEOUT_MS, else DEEPSPEED_TIMEOUT, in minutes,
  /// else ten minutes.
  std::optional<comm::Milliseconds> timeout = std::nullopt;
  /// "env://", or "tcp://host:port" of rank 0, with `rank` and `world_size`.
  std::string init_method = "env://";
  std::optional<int> rank = std::nullopt;
  std::optional<int> world_size = std::nullopt;
};

/// Connects the ranks of the job, once a process; later calls, also of `initialize`, use the same
/// connection. Returns the world and the group of all ranks, for the program's own collectives.
///
/// Throws ConfigError for an unknown backend, and for a second call with other options; throws
/// CommError as connect(). Collective, the first time.
Connected init_distributed(const InitDistributedOptions& options = {});

/// Returns whether init_distributed, or an initialize(), has connected the ranks.
bool is_distributed_initialized();

/// Releases the group; engines that use it keep it. The end of the process does so, too.
/// Never communicates.
void destroy_process_group();

// --- for initialize()
/// Returns this process's rank and world, connected or not.
WorldSpec world_to_connect();
/// Returns the connection of init_distributed, or connects now with `options`. Throws ConfigError
/// if the existing connection does not match `options`, unless these come from the environment.
Connected connected_once(const ConnectOptions& options);

}  // namespace lockstep
