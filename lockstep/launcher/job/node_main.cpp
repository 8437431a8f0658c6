// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/launcher/job/fan_out.h"
#include "lockstep/launcher/job/job.h"
#include "lockstep/launcher/multi_host/node_spec.h"
#include "lockstep/launcher/plan/rank_environment.h"
#include "lockstep/launcher/process/machine_name.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kNodeCommand = "lockstep node";

/// Reads the first line of stdin byte by byte, since ControlChannel reads the others.
std::string first_line() {
  constexpr size_t kLongest = size_t{16} << 20;
  constexpr int kTimeoutMs = 60'000;
  std::string line;
  for (;;) {
    pollfd item{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    char c = 0;
    const bool may_read = ::poll(&item, 1, kTimeoutMs) != 0 && line.size() <= kLongest;
    const ssize_t got = may_read ? ::read(STDIN_FILENO, &c, 1) : 0;
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      throw ConfigError(
          kNodeCommand,
          "no instructions were received; only `lockstep launch` runs this command; use that");
    }
    if (c == '\n') {
      return line;
    }
    line += c;
  }
}

/// Returns the node's number, from the variables of mpirun or srun.
int node_of_environment(const Environment& environment, const std::vector<PlannedHost>& hosts) {
  // srun numbers its tasks by the hosts' names, not in the requested order.
  const auto here = std::find_if(hosts.begin(), hosts.end(), [&](const PlannedHost& host) {
    return !host.name.empty() && host.name == environment.text("SLURMD_NODENAME");
  });
  if (here != hosts.end()) {
    return static_cast<int>(here - hosts.begin());
  }
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const auto node = environment.integer(name, 0, static_cast<int64_t>(hosts.size()) - 1)) {
      return static_cast<int>(*node);
    }
  }
  throw ConfigError(
      kNodeCommand,
      "the node's number is unknown; expected SLURMD_NODENAME, OMPI_COMM_WORLD_RANK, PMI_RANK or "
      "SLURM_PROCID; start this command by `lockstep launch`");
}

/// Returns whether stdin has the commands of the starter: ssh and srun copy it to every host,
/// mpirun only to its first process, which forwards them.
bool reads_commands(bool by_ssh, const Environment& environment) {
  return by_ssh || environment.text("OMPI_COMM_WORLD_RANK").value_or("0") == "0";
}

}  // namespace

int run_node() {
  const Environment environment = Environment::process();
  const auto text = environment.text(kNodeSpecVariable);
  NodeSpec spec = node_spec_of(text ? *text : first_line());
  ::unsetenv(kNodeSpecVariable);  // It holds the token.
  if (spec.node == NodeSpec::kFromStarter) {
    spec.node = node_of_environment(environment, spec.hosts);
  }
  if (::chdir(spec.folder.c_str()) != 0) {
    throw ConfigError(
        kNodeCommand,
        fmt::format(
            "{}: cannot enter the folder {}: {}; it must exist on every host",
            host_name(),
            spec.folder,
            std::strerror(errno)));
  }
  const Program program = find_program(spec.command, environment, spec.kind);
  const JobPlan plan =
      plan_node(spec.options, spec.hosts, static_cast<size_t>(spec.node), own_environment());
  const int command_fd = reads_commands(!text, environment) ? STDIN_FILENO : -1;
  return run_planned_job(
      program, spec.options, plan, {.token = spec.token, .command_fd = command_fd});
}

}  // namespace lockstep::launcher
