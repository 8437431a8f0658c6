// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/launcher/plan/job_options.h"

namespace lockstep::launcher {

/// What the ranks of one host have in common.
struct JobLayout {
  int world_size = 1;  ///< Ranks on all hosts.
  int local_size = 1;  ///< Ranks on this one.
  int first_rank = 0;  ///< The rank here with LOCAL_RANK 0: those of the hosts before.
  int nodes = 1;
  int node_rank = 0;
  std::string role = "default";
  std::string omp_num_threads = "1";
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string run_id;
  int restart_count = 0;
  int max_restarts = 0;
  int terminal_columns = 0;  ///< Width of the launcher's terminal; 0 when stderr is none.
  bool is_python = false;
  bool resume = false;  ///< LOCKSTEP_RESUME=1: the ranks go on from their newest checkpoint.
  std::vector<EnvVariable> extra{};  ///< What else is set, the same in every rank; this wins.
};

/// Puts `variable` among `variables`, instead of one of that name.
void set_variable(std::vector<EnvVariable>& variables, EnvVariable variable);

/// What the launcher itself sets for local rank `local_rank`: torchrun's variables and ours, each
/// of which is_set_by_launcher() but OMP_NUM_THREADS, LOCKSTEP_RESUME, and `layout.extra`.
std::vector<EnvVariable> rank_variables(const JobLayout& layout, int local_rank);

/// The environment of local rank `local_rank`, as `NAME=value`: `inherited` with rank_variables().
///
/// What other launchers say about ranks (OMPI_*, PMI_*, PMIX_*, MPI_LOCAL*, MV2_*, SLURM_PROCID and
/// SLURM_LOCALID) is taken out, so that a rank knows one answer only, and so is
/// TORCHELASTIC_USE_AGENT_STORE: nobody but rank 0 serves the store. LOCKSTEP_TERMINAL, the width
/// of the terminal, goes to rank 0 alone, which may then draw a progress bar. A Python script's
/// output is unbuffered unless PYTHONUNBUFFERED says otherwise: through a pipe it would come
/// minutes late.
std::vector<std::string> rank_environment(
    const std::vector<std::string>& inherited, const JobLayout& layout, int local_rank);

/// The environment of this process, as `NAME=value`.
std::vector<std::string> own_environment();

/// Twice as many hexadecimal digits as `bytes`, of random numbers that nobody can guess.
std::string random_hex(size_t bytes);

/// 64 random bits.
inline std::string random_run_id() {
  return random_hex(sizeof(uint64_t));
}

}  // namespace lockstep::launcher
