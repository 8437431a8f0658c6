// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace lockstep::launcher {

/// More ranks than this on one core are refused unless forced: a slip of the finger, not a job.
inline constexpr int kMaxRanksPerCore = 64;

/// The number of ranks `text` asks for: a number, or "auto" for one a core. ConfigError for
/// anything else, and for more than kMaxRanksPerCore a core unless `force`.
int parse_ranks(const std::string& text, int cores, bool force);

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
