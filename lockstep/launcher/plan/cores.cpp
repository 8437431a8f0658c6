// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/cores.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/cores.h"
#include "lockstep/base/text/split.h"
#include "lockstep/base/text/words.h"

namespace lockstep::launcher {
namespace {

constexpr int kMaxRanks = 1 << 20;

}  // namespace

Machine this_machine() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return {
      .cores = available_cores(),
      .gpus =
          visible_gpus(visible == nullptr ? std::nullopt : std::optional<std::string>(visible))};
}

int visible_gpus(
    const std::optional<std::string>& cuda_visible_devices, const std::string& devices) {
  constexpr std::string_view kPrefix = "nvidia";
  int present = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(devices, none)) {
    const std::string name = entry.path().filename();
    present += name.starts_with(kPrefix) && parse_integer(name.substr(kPrefix.size())) ? 1 : 0;
  }
  if (!cuda_visible_devices || present == 0) {
    return present;
  }
  int listed = 0;
  for (const std::string& device : split(*cuda_visible_devices, ',')) {
    if (device.empty() || device[0] == '-') {
      break;  // CUDA reads the list up to the first invalid device.
    }
    ++listed;
  }
  return listed;
}

int parse_ranks(const std::string& text, const Machine& machine, const std::string& flag) {
  if (text == "cpu" || (text == "auto" && machine.gpus == 0)) {
    return machine.cores;
  }
  if (text == "gpu" && machine.gpus == 0) {
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "{} gpu found no GPU: /dev/nvidia0 does not exist, or CUDA_VISIBLE_DEVICES hides all "
            "GPUs; try {} cpu for one rank per core, or a number",
            flag,
            flag));
  }
  if (text == "gpu" || text == "auto") {
    return machine.gpus;
  }
  const auto number = parse_integer(text);
  if (!number || *number < 1 || *number > kMaxRanks) {
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "invalid value '{}' for {}; expected a number of ranks from 1 to {}, or cpu, gpu or "
            "auto",
            text,
            flag,
            kMaxRanks));
  }
  return static_cast<int>(*number);
}

void check_rank_limit(int ranks, int cores, bool force) {
  const int limit = kMaxRanksPerCore * cores;
  if (ranks > limit && !force) {
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "too many ranks for this machine; got {}, expected at most {} on {}; add --force if "
            "you mean it",
            ranks,
            limit,
            counted(static_cast<size_t>(cores), "core")));
  }
}

ThreadPlan plan_threads(
    int requested, const std::optional<std::string>& omp_num_threads, int cores, int ranks) {
  const std::string world = counted(static_cast<size_t>(ranks), "rank");
  const std::string machine = counted(static_cast<size_t>(cores), "core");
  if (requested == 0 && omp_num_threads) {
    return {
        *omp_num_threads,
        fmt::format(
            "{} on {}, OMP_NUM_THREADS={} from the environment", world, machine, *omp_num_threads)};
  }
  const int threads = requested > 0 ? requested : std::max(1, cores / ranks);
  return {
      std::to_string(threads),
      fmt::format(
          "{} with {}{} on {}",
          world,
          counted(static_cast<size_t>(threads), "thread"),
          ranks == 1 ? "" : " each",
          machine)};
}

}  // namespace lockstep::launcher
