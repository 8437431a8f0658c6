// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/env.h"

namespace lockstep {

/// Who this process is in its job: the answer to torchrun's, OpenMPI's, PMI's, MVAPICH's or SLURM's
/// variables, or a world of one when none of them is there.
struct WorldSpec {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< Rank among the processes of this host.
  int local_size = 1;  ///< Processes of this host.
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  ///< 0 only in a world of one.
  std::string source;   ///< Whose variables these are: "torchrun", "OpenMPI", "PMI", "MVAPICH",
                        ///< "SLURM", "alone".
  bool agent_store = false;  ///< torchrun's agent already serves the store; every rank is a client.
  int restart_count = 0;     ///< How often the launcher has restarted the job.

  bool on_one_host() const { return local_size == size; }
};

/// Reads the world from `environment`, in the order torchrun, OpenMPI, PMI, MVAPICH, SLURM.
///
/// ConfigError, naming the variable and its value, when: a value is no number or out of range (rank
/// >= world, local rank >= local world); one of a family's variables is missing; two families are
/// present and disagree on rank or world, unless the outer one merely started the inner one on
/// every host (torchrun under mpirun or srun, mpirun inside SLURM); a world of several hosts has no
/// master address. What the first family leaves out (local rank, job) is taken from another that
/// agrees with it. Without MASTER_PORT, jobs of mpirun and srun take a port derived from the id of
/// the job and its step. A SLURM batch script that is not started by srun is no rank: alone, or
/// whatever it starts.
WorldSpec world_from_environment(const Environment& environment);

/// First host of a SLURM node list: "node[07-09,12],gpu3" -> "node07". Empty if it cannot be read.
std::string first_slurm_host(const std::string& node_list);

}  // namespace lockstep
