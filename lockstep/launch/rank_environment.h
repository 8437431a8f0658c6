// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

/// What the ranks of one job have in common.
struct JobLayout {
  int ranks = 1;
  std::string omp_num_threads = "1";
  int master_port = 0;
  std::string run_id;
  int terminal_columns = 0;  ///< Width of the launcher's terminal; 0 when stderr is none.
  bool is_python = false;
  bool resume = false;  ///< LOCKSTEP_RESUME=1: the ranks go on from their newest checkpoint.
};

/// The environment of `rank`, as `NAME=value`: `inherited` with torchrun's variables set.
///
/// What other launchers say about ranks (OMPI_*, PMI_*, PMIX_*, MPI_LOCAL*, MV2_*, SLURM_PROCID and
/// SLURM_LOCALID) is taken out, so that a rank knows one answer only, and so is
/// TORCHELASTIC_USE_AGENT_STORE: nobody but rank 0 serves the store. LOCKSTEP_TERMINAL, the width
/// of the terminal, goes to rank 0 alone, which may then draw a progress bar. A Python script's
/// output is unbuffered unless PYTHONUNBUFFERED says otherwise: through a pipe it would come
/// minutes late.
std::vector<std::string> rank_environment(
    const std::vector<std::string>& inherited, const JobLayout& layout, int rank);

/// 16 random hexadecimal digits.
std::string random_run_id();

}  // namespace lockstep::launcher
