// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/start_ranks.h"

#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/program/terminal.h"
#include "lockstep/launcher/plan/rank_environment.h"

namespace lockstep::launcher {
namespace {

constexpr int kDefaultColumns = 80;

/// Returns 0 if stderr is not a terminal.
int columns_of_stderr() {
  return ::isatty(STDERR_FILENO) == 0 ? 0
                                      : terminal_columns(STDERR_FILENO).value_or(kDefaultColumns);
}

Shown shown(bool by_rank, bool file_only) {
  if (!by_rank) {
    return Shown::kNever;
  }
  return file_only ? Shown::kWithoutFile : Shown::kAlways;
}

std::vector<RankLogs> open_logs(const AttemptSpec& spec, Console& console) {
  std::vector<Streams> files;
  for (const OutputPlan& output : spec.plan->outputs) {
    files.push_back(output.files);
  }
  if (spec.logs != nullptr) {
    try {
      return spec.logs->open(
          spec.number, files, [&console](const std::string& text) { console.say(text); });
    } catch (const ConfigError& error) {
      if (spec.number == 0) {
        throw;
      }
      // A restart without log files is better than no restart.
      console.say(fmt::format("{}; this attempt is shown on the console only", error.what()));
    }
  }
  return std::vector<RankLogs>(files.size());
}

HostEnvironment environment_of(const AttemptSpec& spec) {
  HostEnvironment common = host_environment(*spec.plan, spec.plan->here);
  common.master_port = spec.master_port;
  common.restart_count = spec.number;
  common.resume = common.resume || spec.number > 0;
  common.terminal_columns = columns_of_stderr();
  common.is_python = spec.program->is_python;
  if (NodeSession* const session = spec.session()) {
    common.master_addr = "127.0.0.1";
    common.master_port = session->store_port(spec.master_port);
    set_variable(common.extra, {"LOCKSTEP_HOST_ADDR", session->host_address()});
  }
  return common;
}

}  // namespace

void start_ranks(
    const AttemptSpec& spec,
    Console& console,
    const Watchdog& watchdog,
    const FlightWatch& flights,
    RankSet& ranks) {
  const JobPlan& plan = *spec.plan;
  std::vector<RankLogs> logs = open_logs(spec, console);
  const HostEnvironment common = environment_of(spec);
  const std::vector<std::string> inherited = own_environment();
  const UniqueFd null_input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  // A launcher that another one has started reads commands from its stdin.
  const bool shares_stdin =
      spec.control_channel == nullptr && ::isatty(STDIN_FILENO) == 0 && common.first_rank == 0;
  for (int rank = 0; rank < plan.local_size(); ++rank) {
    const auto index = static_cast<size_t>(rank);
    std::vector<std::string> environment = rank_environment(inherited, common, rank);
    environment.push_back("LOCKSTEP_FLIGHT=" + flights.path(rank));
    ranks.add(start_child(
        {.program = spec.program,
         .environment = std::move(environment),
         .stdin_fd = rank == 0 && shares_stdin ? STDIN_FILENO : null_input.get(),
         .registration_fd = watchdog.registration_fd(),
         .cores = plan.cores.empty() ? std::vector<int>() : plan.cores[index]},
        fmt::format("rank {} of {}", common.first_rank + rank, common.world_size)));
    const OutputPlan& output = plan.outputs[index];
    RankProcess& process = ranks.all().back();
    process.out.copy_to(std::move(logs[index].out), shown(output.shown, output.files_only.out));
    process.err.copy_to(std::move(logs[index].err), shown(output.shown, output.files_only.err));
  }
}

}  // namespace lockstep::launcher
