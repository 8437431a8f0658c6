// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/cores.h"
#include "lockstep/launcher/plan/cpu_bind.h"
#include "lockstep/launcher/plan/env_file.h"
#include "lockstep/launcher/plan/host_filter.h"
#include "lockstep/launcher/plan/hostfile.h"
#include "lockstep/launcher/process/machine_name.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError("lockstep launch", what);
}

std::vector<int> first_slots(int count) {
  std::vector<int> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

void keep_ranks_per_host(std::vector<PlannedHost>& hosts, int ranks) {
  for (PlannedHost& host : hosts) {
    if (static_cast<int>(host.slots.size()) < ranks) {
      refuse(fmt::format(
          "{} ranks do not fit on {}, which has {} slots; request fewer ranks, or omit the host "
          "with --exclude {}",
          ranks,
          host.name,
          host.slots.size(),
          host.name));
    }
    host.all_slots = host.all_slots && static_cast<int>(host.slots.size()) == ranks;
    host.slots.resize(static_cast<size_t>(ranks));
  }
}

/// Keeps the first `ranks` slots of all hosts, in order.
void keep_total_ranks(std::vector<PlannedHost>& hosts, int ranks) {
  size_t left = static_cast<size_t>(ranks);
  size_t slots = 0;
  for (PlannedHost& host : hosts) {
    slots += host.slots.size();
    host.all_slots = host.all_slots && host.slots.size() <= left;
    host.slots.resize(std::min(host.slots.size(), left));
    left -= host.slots.size();
  }
  if (left > 0) {
    refuse(fmt::format("{} ranks do not fit on the hostfile's {} slots", ranks, slots));
  }
  std::erase_if(hosts, [](const PlannedHost& host) { return host.slots.empty(); });
}

std::vector<PlannedHost> hosts_of_file(const config::JobOptions& options) {
  if (options.nodes > 1 || options.node_rank > 0) {
    refuse(
        "the hostfile gives the number of hosts; omit --nnodes and --node-rank, or the hostfile");
  }
  std::vector<PlannedHost> hosts;
  for (HostSlots& host : filter_hosts(
           read_hostfile(options.hostfile), options.include, options.exclude, options.most_hosts)) {
    hosts.push_back(
        {.name = std::move(host.name), .slots = std::move(host.slots), .all_slots = host.all});
  }
  if (options.total_ranks > 0) {
    keep_total_ranks(hosts, options.total_ranks);
  } else if (options.ranks > 0) {
    keep_ranks_per_host(hosts, options.ranks);
  }
  return hosts;
}

/// Returns the hosts of a job without a hostfile, which all have the same number of ranks.
std::vector<PlannedHost> equal_hosts(const config::JobOptions& options) {
  if (!options.include.empty() || !options.exclude.empty() || options.most_hosts > 0) {
    refuse("--include, --exclude and --num-nodes select hosts of a hostfile; add --hostfile");
  }
  if (options.node_rank < 0 || options.node_rank >= options.nodes) {
    refuse(fmt::format(
        "invalid value {} for --node-rank; expected 0 to {} with --nnodes {}",
        options.node_rank,
        options.nodes - 1,
        options.nodes));
  }
  if (options.total_ranks % options.nodes != 0) {
    refuse(fmt::format(
        "{} ranks cannot be shared evenly by {} hosts; give the number for each host with -n",
        options.total_ranks,
        options.nodes));
  }
  const int each = options.total_ranks > 0 ? options.total_ranks / options.nodes : options.ranks;
  if (each < 1) {
    refuse("the number of ranks is missing; expected at least 1");
  }
  std::vector<PlannedHost> hosts(
      static_cast<size_t>(options.nodes), {.name = "", .slots = first_slots(each)});
  hosts[static_cast<size_t>(options.node_rank)].name = host_name();
  return hosts;
}

std::string master_address(const config::JobOptions& options, const JobPlan& plan) {
  if (!options.master_addr.empty()) {
    if (const std::string fault = host_name_fault(options.master_addr); !fault.empty()) {
      refuse(fmt::format("--master-addr '{}' {}", options.master_addr, fault));
    }
    if (plan.is_local() && !is_this_host(options.master_addr)) {
      refuse(fmt::format(
          "--master-addr (or --rdzv-endpoint) {} is not this machine, which runs all ranks; omit "
          "it, or give the number of hosts with --nnodes",
          options.master_addr));
    }
  }
  if (plan.is_local()) {
    return kLoopback;
  }
  if (!options.master_addr.empty()) {
    return options.master_addr;
  }
  if (options.hostfile.empty()) {
    refuse(
        "several hosts need --master-addr; give the name of the host with --node-rank 0, the same "
        "on all hosts");
  }
  const std::string& name = plan.hosts.front().name;
  return name.substr(name.rfind('@') + 1);
}

bool is_plain_id(const std::string& id) {
  constexpr size_t kLongestId = 128;
  return id.size() <= kLongestId && id.front() != '.' && id.front() != '-' &&
         id.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
             std::string::npos;
}

std::string run_id(const config::JobOptions& options) {
  if (options.run_id.empty()) {
    return random_run_id();
  }
  if (!is_plain_id(options.run_id)) {
    refuse(fmt::format(
        "invalid value '{}' for --rdzv-id, which names a folder; expected at most 128 letters, "
        "digits and ._-, the first a letter or digit",
        options.run_id));
  }
  return options.run_id;
}

/// Returns the variables of every rank that torchrun does not define.
std::vector<config::EnvVariable> extra_variables(
    const config::JobOptions& options,
    const std::vector<std::string>& env_folders,
    const std::vector<std::string>& inherited) {
  std::vector<config::EnvVariable> extra;
  if (!options.hostfile.empty()) {
    extra = forwarded_variables(inherited);
  }
  for (config::EnvVariable& variable : read_env_files(env_folders)) {
    set_variable(extra, std::move(variable));
  }
  if (options.cpu && !options.visible_devices.empty()) {
    refuse("--cpu and --gpu-ids contradict each other; give only one");
  }
  for (config::EnvVariable& variable : setting_variables(options)) {
    set_variable(extra, std::move(variable));
  }
  for (const config::EnvVariable& variable : options.env) {
    if (const std::string fault = variable_fault(variable.name); !fault.empty()) {
      refuse(fmt::format("the variable name '{}' {}", variable.name, fault));
    }
    set_variable(extra, variable);
  }
  return extra;
}

std::optional<std::string> value_of(
    const std::string& name,
    const std::vector<config::EnvVariable>& extra,
    const std::vector<std::string>& inherited) {
  for (const config::EnvVariable& variable : extra) {
    if (variable.name == name) {
      return variable.value;
    }
  }
  for (const std::string& entry : inherited) {
    if (entry.starts_with(name + "=") && entry.size() > name.size() + 1) {
      return entry.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

std::vector<std::string> env_folders(
    const config::JobOptions& options, const std::vector<std::string>& inherited) {
  if (options.hostfile.empty()) {
    return {};
  }
  std::vector<std::string> folders = {"."};
  if (const auto home = value_of("HOME", {}, inherited)) {
    folders.insert(folders.begin(), *home);
  }
  return folders;
}

void count_ranks(JobPlan& plan) {
  int ranks = 0;
  for (PlannedHost& host : plan.hosts) {
    host.first_rank = ranks;
    ranks += static_cast<int>(host.slots.size());
  }
  plan.common.world_size = ranks;
  plan.common.nodes = static_cast<int>(plan.hosts.size());
}

void plan_hosts(const config::JobOptions& options, JobPlan& plan) {
  plan.here = static_cast<size_t>(options.node_rank);
  plan.hosts = options.hostfile.empty() ? equal_hosts(options) : hosts_of_file(options);
  if (!options.hostfile.empty()) {
    const auto found =
        std::find_if(plan.hosts.begin(), plan.hosts.end(), [](const PlannedHost& host) {
          return is_this_host(host.name);
        });
    plan.includes_this_host = found != plan.hosts.end();
    plan.here = plan.includes_this_host ? static_cast<size_t>(found - plan.hosts.begin()) : 0;
  }
  count_ranks(plan);
}

std::vector<OutputPlan> plan_outputs(const config::JobOptions& options, int ranks) {
  const std::vector<bool> shown =
      parse_shown_ranks(options.local_ranks_filter, ranks, "--local-ranks-filter");
  const std::vector<Streams> redirected = parse_streams(options.redirects, ranks, "--redirects");
  const bool everything =
      !options.log_dir.empty() && options.redirects.empty() && options.tee.empty();
  const std::vector<Streams> copied = parse_streams(everything ? "3" : options.tee, ranks, "--tee");
  std::vector<OutputPlan> outputs;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
    const Streams only = {
        .out = redirected[rank].out && !copied[rank].out,
        .err = redirected[rank].err && !copied[rank].err};
    outputs.push_back(
        {.files =
             {.out = redirected[rank].out || copied[rank].out,
              .err = redirected[rank].err || copied[rank].err},
         .files_only = only,
         .shown = shown[rank]});
  }
  return outputs;
}

/// Formats "; rank 0 on cores 0-3, rank 1 on cores 4-7".
std::string binding_summary(const std::vector<std::vector<int>>& cores) {
  constexpr size_t kMostRanks = 8;
  std::string text;
  for (size_t rank = 0; rank < std::min(cores.size(), kMostRanks); ++rank) {
    text += fmt::format(
        "{} local rank {} on {} {}",
        rank == 0 ? ";" : ",",
        rank,
        cores[rank].size() == 1 ? "core" : "cores",
        core_list(cores[rank]));
  }
  return cores.size() > kMostRanks ? text + ", ..." : text;
}

/// Throws ConfigError for a mesh that these hosts cannot have.
MeshShape plan_mesh(const config::JobOptions& options, const JobPlan& plan) {
  const bool shards = !options.zero_stage.empty() && options.zero_stage != "0";
  const MeshShape shape =
      resolve_mesh(parse_mesh(options.mesh, "--mesh"), plan.world_size(), shards);
  std::vector<int> ranks;
  for (const PlannedHost& host : plan.hosts) {
    ranks.push_back(static_cast<int>(host.slots.size()));
  }
  expect_lines_on_hosts(shape, ranks);
  return shape;
}

/// Computes the plan except its hosts.
void finish_plan(
    const config::JobOptions& options, const std::vector<std::string>& inherited, JobPlan& plan) {
  plan.common.master_addr = master_address(options, plan);
  plan.common.master_port = options.master_port == 0 && !plan.is_local()
                                ? config::kDefaultMasterPort
                                : options.master_port;
  plan.common.run_id = run_id(options);
  plan.common.role = options.role;
  plan.common.max_restarts = options.max_restarts;
  plan.common.resume = options.resume;
  plan.common.extra = extra_variables(options, env_folders(options, inherited), inherited);
  const int cores = available_cores();
  if (plan.includes_this_host) {
    check_rank_limit(plan.local_size(), cores, options.force);
    if (options.cpu_bind != config::CpuBind::kNone) {
      plan.cores = bind_plan(options.cpu_bind, allowed_cores(), plan.local_size());
    }
  }
  if (options.threads_per_rank > 0 && value_of("OMP_NUM_THREADS", plan.common.extra, {})) {
    refuse("--env and --threads-per-rank both set OMP_NUM_THREADS; give only one");
  }
  plan.threads = plan_threads(
      options.threads_per_rank,
      value_of("OMP_NUM_THREADS", plan.common.extra, inherited),
      cores,
      plan.local_size());
  plan.threads.summary += binding_summary(plan.cores);
  plan.common.omp_num_threads = plan.threads.omp_num_threads;
  plan.outputs = plan_outputs(options, plan.local_size());
}

}  // namespace

bool JobPlan::needs_files() const {
  return std::any_of(outputs.begin(), outputs.end(), [](const OutputPlan& output) {
    return output.files.out || output.files.err;
  });
}

JobPlan plan_job(const config::JobOptions& options, const std::vector<std::string>& inherited) {
  JobPlan plan;
  plan_hosts(options, plan);
  if (!options.mesh.empty()) {
    plan.mesh = plan_mesh(options, plan);
  }
  finish_plan(options, inherited, plan);
  return plan;
}

JobPlan plan_node(
    const config::JobOptions& options,
    std::vector<PlannedHost> hosts,
    size_t here,
    const std::vector<std::string>& inherited) {
  JobPlan plan;
  plan.hosts = std::move(hosts);
  plan.here = here;
  count_ranks(plan);
  finish_plan(options, inherited, plan);
  return plan;
}

HostEnvironment host_environment(const JobPlan& plan, size_t host) {
  const PlannedHost& planned = plan.hosts[host];
  HostEnvironment common = plan.common;
  common.local_size = static_cast<int>(planned.slots.size());
  common.first_rank = planned.first_rank;
  common.node_rank = static_cast<int>(host);
  const bool sets_devices = value_of("CUDA_VISIBLE_DEVICES", common.extra, {}).has_value();
  if (!planned.all_slots && !sets_devices) {
    // With only some slots, their numbers select the devices.
    std::string devices;
    for (const int slot : planned.slots) {
      devices += fmt::format("{}{}", devices.empty() ? "" : ",", slot);
    }
    common.extra.push_back({"CUDA_VISIBLE_DEVICES", devices});
  }
  return common;
}

}  // namespace lockstep::launcher
