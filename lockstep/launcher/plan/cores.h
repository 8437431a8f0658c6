// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace lockstep::launcher {

/// The largest number of ranks per core without --force: more is probably a typing error.
inline constexpr int kMaxRanksPerCore = 64;

/// The resources that a number of ranks can be derived from.
struct Machine {
  int cores = 1;
  int gpus = 0;
};

/// Returns the cores that this process may use, and the GPUs that its ranks would see.
Machine this_machine();

/// Returns the number of GPUs with a device file in `devices`; the number that CUDA_VISIBLE_DEVICES
/// lists if it is set.
int visible_gpus(
    const std::optional<std::string>& cuda_visible_devices, const std::string& devices = "/dev");

/// Parses a number of ranks: a number, "cpu" for one per core, "gpu" for one per GPU, or "auto".
/// "auto" is "gpu" on a machine with GPUs, else "cpu". Throws ConfigError, naming `flag`, for
/// anything else, and for "gpu" without GPUs.
int parse_ranks(const std::string& text, const Machine& machine, const std::string& flag);

/// Throws ConfigError for more than kMaxRanksPerCore ranks per core, unless `force`.
void check_rank_limit(int ranks, int cores, bool force);

/// The number of threads of each rank.
struct ThreadPlan {
  std::string omp_num_threads;  ///< For the ranks' environment.
  std::string summary;          ///< "2 ranks x 1 thread on 2 cores", to be logged once.
};

/// Uses `requested` if above 0, else OMP_NUM_THREADS, else an even share of the cores, at least
/// one.
ThreadPlan plan_threads(
    int requested, const std::optional<std::string>& omp_num_threads, int cores, int ranks);

}  // namespace lockstep::launcher
