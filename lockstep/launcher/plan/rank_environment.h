// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/config/settings/job_options.h"

namespace lockstep::launcher {

/// The part of the environment that the ranks of one host have in common.
struct HostEnvironment {
  int world_size = 1;  ///< Ranks on all hosts.
  int local_size = 1;  ///< Ranks on this host.
  int first_rank = 0;  ///< The rank with LOCAL_RANK 0 on this host.
  int nodes = 1;
  int node_rank = 0;
  std::string role = "default";
  std::string omp_num_threads = "1";
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string run_id;
  int restart_count = 0;
  int max_restarts = 0;
  int terminal_columns = 0;  ///< Width of the launcher's terminal; 0 without one.
  bool is_python = false;
  bool resume = false;  ///< LOCKSTEP_RESUME=1: the ranks resume from their newest checkpoint.
  /// Further variables, the same in every rank; they take precedence.
  std::vector<config::EnvVariable> extra{};
};

/// Returns the variables that the ranks get from the options, by the rows of
/// config/settings/setting_table.h. An option without a value has none.
std::vector<config::EnvVariable> setting_variables(const config::JobOptions& options);

/// Returns the variables that the launcher sets for local rank `local_rank`: torchrun's and
/// Lockstep's, each of which is_set_by_launcher() except OMP_NUM_THREADS, LOCKSTEP_RESUME, and
/// `common.extra`.
std::vector<config::EnvVariable> rank_variables(const HostEnvironment& common, int local_rank);

/// Returns the environment of local rank `local_rank`, as `NAME=value`: `inherited` with
/// rank_variables().
///
/// Rank variables of other launchers (OMPI_*, PMI_*, PMIX_*, MPI_LOCAL*, MV2_*, SLURM_PROCID and
/// SLURM_LOCALID) are removed, so that a rank has only one number. TORCHELASTIC_USE_AGENT_STORE is
/// removed, since rank 0 serves the store. LOCKSTEP_TERMINAL, the width of the terminal, is set for
/// rank 0 only, which may then draw a progress bar. A Python script's output is unbuffered unless
/// PYTHONUNBUFFERED is set: through a pipe it would arrive minutes late.
std::vector<std::string> rank_environment(
    const std::vector<std::string>& inherited, const HostEnvironment& common, int local_rank);

/// Returns the environment of this process, as `NAME=value`.
std::vector<std::string> own_environment();

/// Returns `bytes` cryptographically random bytes as hexadecimal digits.
std::string random_hex(size_t bytes);

/// Returns 64 random bits as hexadecimal digits.
inline std::string random_run_id() {
  return random_hex(sizeof(uint64_t));
}

}  // namespace lockstep::launcher
