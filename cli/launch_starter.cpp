// SPDX-License-Identifier: Apache-2.0
#include "cli/launch_starter.h"

#include <map>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/suggest.h"
#include "lockstep/base/world.h"

namespace lockstep::cli {
namespace {

using launcher::Starter;

constexpr const char* kLocal = "local";

/// DeepSpeed's names, and those of the programs.
const std::map<std::string, Starter>& starters() {
  static const std::map<std::string, Starter> known = {
      {"ssh", Starter::kSsh},
      {"openmpi", Starter::kMpirun},
      {"mpirun", Starter::kMpirun},
      {"slurm", Starter::kSrun},
      {"srun", Starter::kSrun}};
  return known;
}

std::optional<Starter> asked_for(const LaunchFlags& flags) {
  const auto found = starters().find(flags.launcher);
  return found == starters().end() ? std::nullopt : std::optional(found->second);
}

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError("lockstep launch", what);
}

}  // namespace

void prepare_starter(
    const LaunchFlags& flags, const Environment& environment, launcher::JobOptions& options) {
  const auto starter = asked_for(flags);
  if (!flags.launcher.empty() && flags.launcher != kLocal && !starter) {
    std::vector<std::string> names = {kLocal};
    for (const auto& [name, unused] : starters()) {
      names.push_back(name);
    }
    refuse(fmt::format(
        "--launcher makes no sense; got '{}', expected local, ssh, openmpi or slurm{}",
        flags.launcher,
        did_you_mean(flags.launcher, names)));
  }
  if (starter && starter != Starter::kSrun && options.hostfile.empty()) {
    refuse(fmt::format(
        "--launcher {} starts a launcher on each host of a hostfile; add --hostfile FILE",
        flags.launcher));
  }
  if (starter == Starter::kSrun && options.hostfile.empty()) {
    const auto list = environment.text("SLURM_JOB_NODELIST");
    const std::string first = list ? first_slurm_host(*list) : "";
    if (first.empty()) {
      refuse(
          "--launcher slurm runs in an allocation of SLURM, and SLURM_JOB_NODELIST names none; "
          "call "
          "it from sbatch or salloc");
    }
    if (flags.nnodes.empty()) {
      options.nodes =
          static_cast<int>(environment.integer("SLURM_JOB_NUM_NODES", 1, 1 << 20).value_or(1));
    }
    options.master_addr = options.master_addr.empty() ? first : options.master_addr;
  }
  if (!options.starter_args.empty() && !starter && options.hostfile.empty()) {
    refuse("--launcher-args are for ssh, mpirun or srun; add --launcher, or --hostfile");
  }
}

std::optional<Starter> starter_of(const LaunchFlags& flags, const launcher::JobPlan& plan) {
  if (const auto starter = asked_for(flags)) {
    return starter;
  }
  const bool by_hand = flags.options.hostfile.empty();
  if (plan.is_local() || by_hand) {
    return std::nullopt;
  }
  if (flags.launcher == kLocal) {
    refuse("--launcher local starts ranks on this host alone, and the hostfile names others");
  }
  return Starter::kSsh;
}

}  // namespace lockstep::cli
