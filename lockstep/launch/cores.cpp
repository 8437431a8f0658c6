// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/cores.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr int kMaxRanks = 1 << 20;

std::string counted(int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

int parse_ranks(const std::string& text, int cores, bool force) {
  if (text == "auto") {
    return cores;
  }
  const auto number = parse_integer(text);
  if (!number || *number < 1 || *number > kMaxRanks) {
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "-n makes no sense; got '{}', expected a number of ranks from 1 to {}, or auto for one "
            "a core",
            text,
            kMaxRanks));
  }
  const int limit = kMaxRanksPerCore * cores;
  if (*number > limit && !force) {
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "too many ranks for this machine; got -n {}, expected at most {} on {}; add --force if "
            "you mean it",
            *number,
            limit,
            counted(cores, "core")));
  }
  return static_cast<int>(*number);
}

ThreadPlan plan_threads(
    int requested, const std::optional<std::string>& omp_num_threads, int cores, int ranks) {
  const std::string world = counted(ranks, "rank");
  const std::string machine = counted(cores, "core");
  if (requested == 0 && omp_num_threads) {
    return {
        *omp_num_threads,
        fmt::format(
            "{} on {}, OMP_NUM_THREADS={} from the environment", world, machine, *omp_num_threads)};
  }
  const int threads = requested > 0 ? requested : std::max(1, cores / ranks);
  return {
      std::to_string(threads),
      fmt::format("{} x {} on {}", world, counted(threads, "thread"), machine)};
}

}  // namespace lockstep::launcher
