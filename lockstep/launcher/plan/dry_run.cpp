// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/dry_run.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/text/secrets.h"
#include "lockstep/base/text/shell.h"
#include "lockstep/base/text/words.h"
#include "lockstep/launcher/plan/cpu_bind.h"
#include "lockstep/mesh/mesh_picture.h"

namespace lockstep::launcher {
namespace {

bool is_here(const JobPlan& plan, size_t host) {
  return plan.includes_this_host && host == plan.here;
}

/// Returns the cores of a rank; empty for a rank of another host, whose cores are unknown.
std::vector<int> cores_of(const JobPlan& plan, size_t host, size_t local_rank) {
  return is_here(plan, host) && !plan.cores.empty() ? plan.cores[local_rank] : std::vector<int>();
}

HostEnvironment environment_of(const JobPlan& plan, size_t host, const Program& program) {
  HostEnvironment common = host_environment(plan, host);
  common.is_python = program.is_python;
  return common;
}

std::string name_of_host(const PlannedHost& planned, size_t host) {
  return planned.name.empty() ? fmt::format("with node rank {}", host) : planned.name;
}

std::vector<std::string> host_of_each_rank(const JobPlan& plan) {
  std::vector<std::string> names;
  for (size_t host = 0; host < plan.hosts.size(); ++host) {
    names.insert(names.end(), plan.hosts[host].slots.size(), name_of_host(plan.hosts[host], host));
  }
  return names;
}

}  // namespace

std::string dry_run_text(const JobPlan& plan, const Program& program) {
  std::string text = fmt::format(
      "{} on {}; nothing was started\n  command:  {}\n  program:  {}\n  address:  {}\n",
      counted(static_cast<size_t>(plan.world_size()), "rank"),
      counted(plan.hosts.size(), "host"),
      shell_quoted(program.argv),
      shell_quoted({program.path}),
      plan.common.master_port == 0
          ? plan.common.master_addr + ", any free port"
          : fmt::format("{} port {}", plan.common.master_addr, plan.common.master_port));
  if (plan.mesh) {
    const std::string picture = mesh_picture(*plan.mesh, host_of_each_rank(plan));
    text += picture.empty() ? "" : "\n" + picture;
  }
  for (size_t host = 0; host < plan.hosts.size(); ++host) {
    const PlannedHost& planned = plan.hosts[host];
    text += fmt::format(
        "\nhost {}{}: {} {}\n",
        name_of_host(planned, host),
        is_here(plan, host) ? " (this one)" : "",
        planned.slots.size() == 1 ? "slot" : "slots",
        core_list(planned.slots));
    const HostEnvironment common = environment_of(plan, host, program);
    for (size_t local = 0; local < planned.slots.size(); ++local) {
      const std::vector<int> cores = cores_of(plan, host, local);
      text += fmt::format(
          "  rank {}, slot {}{}\n",
          planned.first_rank + static_cast<int>(local),
          planned.slots[local],
          cores.empty() ? "" : ", cores " + core_list(cores));
      for (const config::EnvVariable& variable : rank_variables(common, static_cast<int>(local))) {
        text += "    " +
                shell_quoted({variable.name + "=" + shown_value(variable.name, variable.value)}) +
                "\n";
      }
    }
  }
  return text;
}

nlohmann::json dry_run_json(const JobPlan& plan, const Program& program) {
  nlohmann::json object = {
      {"world_size", plan.world_size()},
      {"command", program.argv},
      {"program", program.path},
      {"run_id", plan.common.run_id},
      {"master_addr", plan.common.master_addr},
      {"master_port", plan.common.master_port},
      {"max_restarts", plan.common.max_restarts}};
  if (plan.mesh) {
    for (const MeshDim dim : kMeshDims) {
      object["mesh"][mesh_dim_name(dim)] = plan.mesh->size(dim);
    }
    object["mesh"]["ep"] = plan.mesh->ep;
  }
  object["hosts"] = nlohmann::json::array();
  for (size_t host = 0; host < plan.hosts.size(); ++host) {
    const PlannedHost& planned = plan.hosts[host];
    nlohmann::json entry;
    entry["name"] = nullptr;
    if (!planned.name.empty()) {
      entry["name"] = planned.name;
    }
    entry["here"] = is_here(plan, host);
    entry["slots"] = planned.slots;
    entry["ranks"] = nlohmann::json::array();
    const HostEnvironment common = environment_of(plan, host, program);
    for (size_t local = 0; local < planned.slots.size(); ++local) {
      nlohmann::json rank = {
          {"rank", planned.first_rank + static_cast<int>(local)},
          {"local_rank", local},
          {"slot", planned.slots[local]}};
      rank["cores"] = cores_of(plan, host, local);
      rank["environment"] = nlohmann::json::object();
      for (const config::EnvVariable& variable : rank_variables(common, static_cast<int>(local))) {
        rank["environment"][variable.name] = shown_value(variable.name, variable.value);
      }
      entry["ranks"].push_back(std::move(rank));
    }
    object["hosts"].push_back(std::move(entry));
  }
  return object;
}

}  // namespace lockstep::launcher
