// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_starter.h"

#include <map>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/slurm_hosts.h"
#include "lockstep/base/text/suggest.h"

namespace lockstep::cli {
namespace {

using launcher::Starter;

constexpr const char* kLocal = "local";

/// Returns the launchers by DeepSpeed's name, and by that of the program.
const std::map<std::string, Starter>& starters() {
  static const std::map<std::string, Starter> known = {
      {"ssh", Starter::kSsh},
      {"openmpi", Starter::kMpirun},
      {"mpirun", Starter::kMpirun},
      {"slurm", Starter::kSrun},
      {"srun", Starter::kSrun}};
  return known;
}

std::optional<Starter> chosen_starter(const LaunchFlags& flags) {
  const auto found = starters().find(flags.launcher);
  return found == starters().end() ? std::nullopt : std::optional(found->second);
}

/// Returns the nodes of this process's SLURM allocation; at least one.
std::vector<std::string> allocated_hosts(const Environment& environment) {
  const auto list = environment.text("SLURM_JOB_NODELIST");
  if (!list) {
    refuse_launch(
        "--launcher slurm needs an allocation of SLURM, but SLURM_JOB_NODELIST is not set; call it "
        "from sbatch or salloc");
  }
  std::vector<std::string> names = slurm_hosts(*list);
  if (names.empty()) {
    refuse_launch(fmt::format(
        "invalid value '{}' for SLURM_JOB_NODELIST; expected a list like n[1-3,7],gpu2", *list));
  }
  return names;
}

}  // namespace

void prepare_starter(
    const LaunchFlags& flags, const Environment& environment, config::JobOptions& options) {
  const auto starter = chosen_starter(flags);
  if (!flags.launcher.empty() && flags.launcher != kLocal && !starter) {
    std::vector<std::string> names = {kLocal};
    for (const auto& [name, unused] : starters()) {
      names.push_back(name);
    }
    refuse_launch(fmt::format(
        "invalid value '{}' for --launcher; expected one of local, ssh, openmpi, slurm{}",
        flags.launcher,
        did_you_mean(flags.launcher, names)));
  }
  if (starter && starter != Starter::kSrun && options.hostfile.empty()) {
    refuse_launch(fmt::format(
        "--launcher {} starts a launcher on each host of a hostfile; add --hostfile FILE",
        flags.launcher));
  }
  if (starter == Starter::kSrun && options.hostfile.empty()) {
    const std::vector<std::string> names = allocated_hosts(environment);
    const int allocated = static_cast<int>(names.size());
    if (flags.nnodes.empty()) {
      options.nodes = allocated;
    }
    if (options.nodes > allocated) {
      refuse_launch(fmt::format(
          "--nnodes {} is more than the {} nodes of the allocation; request more with -N of salloc "
          "or sbatch",
          options.nodes,
          allocated));
    }
    if (options.nodes > 1 && options.master_addr.empty()) {
      options.master_addr = names.front();
    }
  }
  if (!options.starter_args.empty() && !starter && options.hostfile.empty()) {
    refuse_launch("--launcher-args needs ssh, mpirun or srun; add --launcher, or --hostfile");
  }
}

void name_allocated_hosts(
    const LaunchFlags& flags, const Environment& environment, launcher::JobPlan& plan) {
  if (chosen_starter(flags) != Starter::kSrun || !flags.options.hostfile.empty()) {
    return;
  }
  const std::vector<std::string> names = allocated_hosts(environment);
  for (size_t host = 0; host < plan.hosts.size(); ++host) {
    plan.hosts[host].name = names.at(host);
  }
}

std::optional<Starter> starter_of(const LaunchFlags& flags, const launcher::JobPlan& plan) {
  if (const auto starter = chosen_starter(flags)) {
    return starter;
  }
  const bool by_hand = flags.options.hostfile.empty();
  if (plan.is_local() || by_hand) {
    return std::nullopt;
  }
  if (flags.launcher == kLocal) {
    refuse_launch(
        "--launcher local starts ranks on this host only, but the hostfile names others; use ssh");
  }
  return Starter::kSsh;
}

}  // namespace lockstep::cli
