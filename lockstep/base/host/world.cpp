// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/host/world.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/address.h"
#include "lockstep/base/host/slurm_hosts.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxWorld = 1 << 20;
constexpr int kFirstDerivedPort = 20000;
constexpr int kDerivedPorts = 12000;  // Below Linux' ephemeral range, which starts at 32768.

/// The names of one launcher's variables. The first one that is set counts; for the job all
/// that are set.
struct Family {
  const char* source;
  std::vector<const char*> rank, size, local_rank, local_size, job;
};

constexpr const char* kTorchrun = "torchrun";
constexpr const char* kSlurm = "SLURM";

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {kTorchrun, {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}, {}},
      {"OpenMPI",
       {"OMPI_COMM_WORLD_RANK"},
       {"OMPI_COMM_WORLD_SIZE"},
       {"OMPI_COMM_WORLD_LOCAL_RANK"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE"},
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
      {"PMI", {"PMI_RANK"}, {"PMI_SIZE"}, {"MPI_LOCALRANKID"}, {"MPI_LOCALNRANKS"}, {}},
      {"MVAPICH",
       {"MV2_COMM_WORLD_RANK"},
       {"MV2_COMM_WORLD_SIZE"},
       {"MV2_COMM_WORLD_LOCAL_RANK"},
       {"MV2_COMM_WORLD_LOCAL_SIZE"},
       {}},
      {kSlurm,
       {"SLURM_PROCID"},
       {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
       {"SLURM_LOCALID"},
       {},
       {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
  };
  return all;
}

struct IntegerVariable {
  const char* name = nullptr;
  int64_t value = 0;
};

std::optional<IntegerVariable> first_integer(
    const Environment& environment,
    const std::vector<const char*>& names,
    int64_t min,
    int64_t max) {
  for (const char* name : names) {
    if (const auto value = environment.integer(name, min, max)) {
      return IntegerVariable{name, *value};
    }
  }
  return std::nullopt;
}

/// The rank and world size that one launcher's variables report.
struct Identity {
  const Family* family;
  IntegerVariable rank, size;

  bool is(const char* source) const { return std::string(family->source) == source; }
};

/// sbatch sets the variables of rank 0 for its script, although srun has not started any rank.
bool is_slurm_batch_script(const Environment& environment) {
  return environment.text("ENVIRONMENT") == "BATCH" && !environment.text("SLURM_STEP_ID");
}

std::optional<Identity> identity_of(const Environment& environment, const Family& family) {
  const auto rank = first_integer(environment, family.rank, 0, kMaxWorld - 1);
  const auto size = first_integer(environment, family.size, 1, kMaxWorld);
  if (!rank && !size) {
    return std::nullopt;
  }
  // The shell of salloc has the number of tasks, but is not a rank.
  if (family.source == kSlurm && (!rank || is_slurm_batch_script(environment))) {
    return std::nullopt;
  }
  if (!rank || !size) {
    throw ConfigError(
        "world",
        fmt::format(
            "{} is set but {} is not; set both, or neither to train alone",
            rank ? family.rank[0] : family.size[0],
            rank ? family.size[0] : family.rank[0]));
  }
  if (rank->value >= size->value) {
    throw ConfigError(
        "world",
        fmt::format(
            "the rank is out of range; got {}={} with {}={}, expected a rank from 0 to {}",
            rank->name,
            rank->value,
            size->name,
            size->value,
            size->value - 1));
  }
  return Identity{&family, *rank, *size};
}

bool same_rank_and_world(const Identity& a, const Identity& b) {
  return a.rank.value == b.rank.value && a.size.value == b.size.value;
}

void refuse_conflict(
    const Environment& environment, const Identity& chosen, const Identity& other) {
  // Launchers nest on clusters: mpirun or srun starts one torchrun on each host, or mpirun starts
  // one daemon on each host by srun. The outer launcher then has fewer processes than the job has
  // ranks. With one rank on each host, TORCHELASTIC_RUN_ID shows that torchrun is the inner one.
  const bool torchrun_inside = chosen.is(kTorchrun) && environment.text("TORCHELASTIC_RUN_ID") &&
                               other.size.value <= chosen.size.value;
  const bool mpirun_inside =
      !chosen.is(kTorchrun) && other.is(kSlurm) && other.size.value < chosen.size.value;
  if (other.size.value == 1 || torchrun_inside || mpirun_inside) {
    return;
  }
  throw ConfigError(
      "world",
      fmt::format(
          "the variables of two launchers disagree; {} sets {}={} {}={}, {} sets {}={} {}={}; "
          "unset those of one launcher",
          chosen.family->source,
          chosen.rank.name,
          chosen.rank.value,
          chosen.size.name,
          chosen.size.value,
          other.family->source,
          other.rank.name,
          other.rank.value,
          other.size.name,
          other.size.value));
}

/// Expands SLURM's run-length list of the tasks of each node, "2(x3),1"; empty if it is invalid.
std::vector<int64_t> tasks_per_node(const std::string& list) {
  std::vector<int64_t> tasks;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string item = list.substr(begin, end - begin);
    const size_t times = item.find("(x");
    const auto count = parse_integer(item.substr(0, times));
    std::optional<int64_t> repeat = 1;
    if (times != std::string::npos) {
      repeat = item.back() == ')' ? parse_integer(item.substr(times + 2, item.size() - times - 3))
                                  : std::nullopt;
    }
    const auto room = kMaxWorld - static_cast<int64_t>(tasks.size());
    if (!count || !repeat || *count < 1 || *count > kMaxWorld || *repeat < 1 || *repeat > room) {
      return {};
    }
    tasks.insert(tasks.end(), static_cast<size_t>(*repeat), *count);
    begin = end + 1;
  }
  return tasks;
}

std::optional<IntegerVariable> slurm_local_size(
    const Environment& environment, int64_t world_size) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const std::vector<int64_t> tasks = tasks_per_node(environment.text(name).value_or(""));
    const auto node = environment.integer("SLURM_NODEID", 0, kMaxWorld);
    if (tasks.size() == 1) {
      return IntegerVariable{name, tasks[0]};
    }
    if (node && *node < static_cast<int64_t>(tasks.size())) {
      return IntegerVariable{name, tasks[static_cast<size_t>(*node)]};
    }
  }
  // The requested number: the last node of a job, or a smaller step, may have fewer.
  auto asked = first_integer(environment, {"SLURM_NTASKS_PER_NODE"}, 1, kMaxWorld);
  if (asked && world_size % asked->value != 0 && asked->value < world_size) {
    asked.reset();
  } else if (asked) {
    asked->value = std::min(asked->value, world_size);
  }
  return asked;
}

/// The rank and size within the host, from the first of the agreeing launchers that sets
/// them.
struct Local {
  std::optional<IntegerVariable> rank, size;
};

Local find_local(
    const Environment& environment, const std::vector<Identity>& agreeing, int64_t world_size) {
  Local best;
  for (const Identity& id : agreeing) {
    Local local{
        first_integer(environment, id.family->local_rank, 0, kMaxWorld - 1),
        first_integer(environment, id.family->local_size, 1, kMaxWorld)};
    if (!local.size && id.is(kSlurm)) {
      local.size = slurm_local_size(environment, world_size);
    }
    if (local.rank && local.size) {
      return local;
    }
    if (!best.rank && !best.size) {
      best = local;
    }
  }
  return best;
}

/// Names the variables to set if a launcher does not set the local rank.
std::string local_names(const Family& family) {
  return fmt::format(
      "{} and {}",
      family.local_rank[0],
      family.local_size.empty() ? "SLURM_STEP_TASKS_PER_NODE" : family.local_size[0]);
}

void read_local(
    const Environment& environment, const std::vector<Identity>& agreeing, WorldSpec& world) {
  const Identity& id = agreeing.front();
  const auto [local_rank, local_size] = find_local(environment, agreeing, world.size);
  const bool one_host = (local_size && local_size->value == world.size) ||
                        is_written_as_loopback(environment.text("MASTER_ADDR").value_or("")) ||
                        world.size == 1;
  if (!(local_rank && local_size) && !one_host) {
    throw ConfigError(
        "world",
        fmt::format(
            "the local rank is unknown in a world of {}={}; set {}",
            id.size.name,
            world.size,
            local_names(*id.family)));
  }
  world.local_rank = local_rank ? static_cast<int>(local_rank->value) : world.rank;
  world.local_size = local_size ? static_cast<int>(local_size->value) : world.size;
  if (world.local_size > world.size || world.local_rank >= world.local_size) {
    throw ConfigError(
        "world",
        fmt::format(
            "the local rank is out of range; got {}={} and {}={} with {}={}, expected local rank < "
            "local size <= world size",
            local_rank ? local_rank->name : id.rank.name,
            world.local_rank,
            local_size ? local_size->name : id.size.name,
            world.local_size,
            id.size.name,
            world.size));
  }
}

std::string slurm_master(const Environment& environment) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto list = environment.text(name)) {
      return first_slurm_host(*list);
    }
  }
  return "";
}

/// Returns a port that every rank derives from the job's id; 0 if no launcher sets one.
int derived_port(const Environment& environment, const std::vector<Identity>& agreeing) {
  for (const Identity& id : agreeing) {
    uint64_t hash = 1469598103934665603ULL;  // FNV-1a.
    bool named = false;
    for (const char* name : id.family->job) {
      const auto job = environment.text(name);
      named = named || job;
      for (unsigned char c : job.value_or("") + "/") {
        hash = (hash ^ c) * 1099511628211ULL;
      }
    }
    if (named) {
      return kFirstDerivedPort + static_cast<int>(hash % kDerivedPorts);
    }
  }
  return 0;
}

void read_master(
    const Environment& environment, const std::vector<Identity>& agreeing, WorldSpec& world) {
  const auto address = environment.text("MASTER_ADDR");
  const auto port = environment.integer("MASTER_PORT", 1, 65535);
  if (address) {
    world.master_addr = *address;
  } else if (!world.on_one_host()) {
    const std::string host = agreeing.back().is(kSlurm) ? slurm_master(environment) : "";
    if (host.empty()) {
      throw ConfigError(
          "world",
          fmt::format(
              "MASTER_ADDR is not set in a world of {} on several hosts; set it to the host of "
              "rank 0",
              world.size));
    }
    world.master_addr = host;
  }
  world.master_port = port ? static_cast<int>(*port) : derived_port(environment, agreeing);
  if (world.master_port != 0) {
    return;
  }
  throw ConfigError(
      "world",
      fmt::format(
          "MASTER_PORT is not set in a world of {}; set it to a free port of rank 0's host",
          world.size));
}

/// Throws ConfigError for a pod of a job of several hosts in which nothing has started ranks.
/// Kubeflow gives each pod torchrun's variables; without a launcher that reads them each pod trains
/// alone.
void refuse_pod_without_launcher(const Environment& environment) {
  const auto hosts = environment.text("PET_NNODES");
  if (!hosts || *hosts == "1" || *hosts == "1:1") {
    return;
  }
  throw ConfigError(
      "world",
      fmt::format(
          "PET_NNODES={} announces a job of several hosts, but RANK and WORLD_SIZE are not set; "
          "start the program by `lockstep launch`, which reads PET_NNODES, or unset it to train "
          "alone",
          *hosts));
}

}  // namespace

WorldSpec world_from_environment(const Environment& environment) {
  std::vector<Identity> agreeing;  // The chosen one, then those with the same rank and world.
  for (const Family& family : families()) {
    const auto found = identity_of(environment, family);
    if (!found) {
      continue;
    }
    if (agreeing.empty() || same_rank_and_world(agreeing.front(), *found)) {
      agreeing.push_back(*found);
    } else {
      refuse_conflict(environment, agreeing.front(), *found);
    }
  }
  WorldSpec world;
  world.source = "alone";
  if (agreeing.empty()) {
    refuse_pod_without_launcher(environment);
    return world;
  }
  const Identity& chosen = agreeing.front();
  world.source = chosen.family->source;
  world.rank = static_cast<int>(chosen.rank.value);
  world.size = static_cast<int>(chosen.size.value);
  read_local(environment, agreeing, world);
  if (world.size > 1) {
    read_master(environment, agreeing, world);
  }
  world.agent_store = world.source == kTorchrun &&
                      environment.boolean("TORCHELASTIC_USE_AGENT_STORE").value_or(false);
  if (world.source == kTorchrun && environment.text("LOCKSTEP_LAUNCHER") == "1") {
    world.source = "lockstep launch";  // It sets torchrun's variables.
  }
  world.restart_count =
      static_cast<int>(environment.integer("TORCHELASTIC_RESTART_COUNT", 0, kMaxWorld).value_or(0));
  return world;
}

std::string first_slurm_host(const std::string& node_list) {
  const std::vector<std::string> hosts = slurm_hosts(node_list);
  return hosts.empty() ? "" : hosts.front();
}

}  // namespace lockstep
