// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace lockstep::launcher {

/// More ranks than this on one core are refused unless forced: a slip of the finger, not a job.
inline constexpr int kMaxRanksPerCore = 64;

/// What a number of ranks can follow.
struct Machine {
  int cores = 1;
  int gpus = 0;
};

/// The cores this process may run on, and the GPUs its ranks would see.
Machine this_machine();

/// GPUs with a device file in `devices`: all, or as many as CUDA_VISIBLE_DEVICES lists if it is
/// set.
int visible_gpus(
    const std::optional<std::string>& cuda_visible_devices, const std::string& devices = "/dev");

/// The number of ranks `text` asks for: a number, "cpu" for one a core, "gpu" for one a GPU, "auto"
/// for one a GPU if there is any, else one a core. ConfigError, naming `flag`, for anything else,
/// and for "gpu" where there is none.
int parse_ranks(const std::string& text, const Machine& machine, const std::string& flag);

/// ConfigError for more than kMaxRanksPerCore ranks a core, unless `force`.
void check_rank_limit(int ranks, int cores, bool force);

/// How many threads each rank computes with.
struct ThreadPlan {
  std::string omp_num_threads;  ///< For the ranks' environment.
  std::string summary;          ///< "2 ranks x 1 thread on 2 cores": to be said once.
};

/// What the user asked for (`requested` > 0), else what OMP_NUM_THREADS already says, else an even
/// share of the cores, at least one.
ThreadPlan plan_threads(
    int requested, const std::optional<std::string>& omp_num_threads, int cores, int ranks);

}  // namespace lockstep::launcher
