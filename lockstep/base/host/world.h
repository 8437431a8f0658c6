// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/env.h"

namespace lockstep {

/// The place of this process in its job; a world of one if no launcher started it.
struct WorldSpec {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< Rank among the processes of this host.
  int local_size = 1;  ///< Processes of this host.
  std::string master_addr = "127.0.0.1";
  int master_port = 0;       ///< 0 only in a world of one.
  std::string source;        ///< The launcher that set the variables: "torchrun", "OpenMPI", "PMI",
                             ///< "MVAPICH", "SLURM", or "alone".
  bool agent_store = false;  ///< torchrun's agent serves the store; every rank is a client.
  int restart_count = 0;     ///< Restarts of the job by the launcher.

  bool on_one_host() const { return local_size == size; }
};

/// Reads the world from `environment`, in the order torchrun, OpenMPI, PMI, MVAPICH, SLURM.
///
/// Values that the first launcher lacks (local rank, job) come from another launcher that agrees
/// with it. Without MASTER_PORT, jobs of mpirun and srun use a port derived from the id of the job
/// and its step. A SLURM batch script that srun did not start trains alone.
///
/// Throws ConfigError, naming the variable and its value, if
/// - a value is not a number or out of range (rank >= world, local rank >= local world);
/// - one of a launcher's variables is missing;
/// - two launchers disagree on rank or world, unless the outer one only started the inner one on
///   every host (torchrun under mpirun or srun, mpirun inside SLURM);
/// - a world of several hosts has no master address.
WorldSpec world_from_environment(const Environment& environment);

/// Returns the first host of a SLURM node list: "node[07-09,12],gpu3" -> "node07". Empty if
/// malformed.
std::string first_slurm_host(const std::string& node_list);

}  // namespace lockstep
