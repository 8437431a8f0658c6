// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "cli/launch/launch_flags.h"
#include "cli/launch/launch_starter.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/config/settings/setting_table.h"
#include "lockstep/launcher/plan/cpu_bind.h"
#include "lockstep/launcher/plan/env_file.h"
#include "lockstep/launcher/plan/rank_environment.h"
#include "lockstep/launcher/process/signals.h"

namespace lockstep::cli {
namespace {

using config::CpuBind;
using config::JobOptions;

constexpr int kMostNodes = 1 << 20;
constexpr const char* kAliasModule = "lockstep.alias";

int parse_node_count(const std::string& text) {
  const size_t colon = text.find(':');
  const auto least = parse_integer(text.substr(0, colon));
  const auto most = colon == std::string::npos ? least : parse_integer(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most > kMostNodes || *most < *least) {
    refuse_launch(fmt::format("invalid value '{}' for --nnodes; expected a number of hosts", text));
  }
  if (*least != *most) {
    refuse_launch(fmt::format(
        "--nnodes {}: a varying number of hosts is not supported; expected one number; a restarted "
        "job may have another number, and continues from its checkpoint",
        text));
  }
  return static_cast<int>(*most);
}

/// Reads HOST:PORT, HOST, or [HOST]:PORT for IPv6.
void read_endpoint(const std::string& text, JobOptions& options) {
  constexpr int kLastPort = 65535;
  const size_t bracket = text.rfind(']');
  const size_t colon = text.find(':', bracket == std::string::npos ? 0 : bracket);
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  if (!options.master_addr.empty() && options.master_addr != host) {
    refuse_launch(fmt::format(
        "--rdzv-endpoint {} and --master-addr {} differ; give only one",
        text,
        options.master_addr));
  }
  options.master_addr = host;
  if (colon == std::string::npos) {
    return;
  }
  const auto port = parse_integer(text.substr(colon + 1));
  if (!port || *port < 0 || *port > kLastPort) {
    refuse_launch(fmt::format(
        "invalid value '{}' for --rdzv-endpoint; expected HOST:PORT with a port from 0 to {}",
        text,
        kLastPort));
  }
  if (options.master_port != 0 && options.master_port != *port) {
    refuse_launch(fmt::format(
        "--rdzv-endpoint {} and --master-port {} differ; give only one",
        text,
        options.master_port));
  }
  options.master_port = static_cast<int>(*port);
}

void read_rendezvous_settings(const std::string& text, JobOptions& options) {
  constexpr double kDaySeconds = 86400;
  static const std::vector<std::string> known = {"join_timeout", "timeout"};
  std::istringstream settings(text);
  for (std::string setting; std::getline(settings, setting, ',');) {
    const size_t equals = setting.find('=');
    const std::string key = setting.substr(0, equals);
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse_launch(fmt::format(
          "--rdzv-conf {} has no effect, since Lockstep has no agent; expected join_timeout=S or "
          "timeout=S{}",
          key,
          did_you_mean(key, known)));
    }
    const std::string value = equals == std::string::npos ? "" : setting.substr(equals + 1);
    double seconds = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, seconds);
    if (error != std::errc() || stop != end || !(seconds > 0 && seconds <= kDaySeconds)) {
      refuse_launch(fmt::format(
          "invalid value '{}' for {} of --rdzv-conf; expected seconds, at most {:g}",
          value,
          key,
          kDaySeconds));
    }
    options.join_timeout_seconds = seconds;
  }
}

void read_rendezvous(const LaunchFlags& flags, JobOptions& options) {
  if (!flags.rdzv_backend.empty() && flags.rdzv_backend != "c10d" &&
      flags.rdzv_backend != "static") {
    refuse_launch(fmt::format(
        "--rdzv-backend {} is not supported, since rank 0 itself serves the rendezvous; expected "
        "c10d or static, or omit it",
        flags.rdzv_backend));
  }
  if (!flags.rdzv_endpoint.empty()) {
    read_endpoint(flags.rdzv_endpoint, options);
  }
  read_rendezvous_settings(flags.rdzv_conf, options);
  if (flags.standalone && (options.nodes > 1 || options.node_rank > 0 || options.master_port != 0 ||
                           !options.master_addr.empty() || !options.hostfile.empty())) {
    refuse_launch(
        "--standalone means one host and any free port; omit it, or the options for several hosts "
        "and the rendezvous");
  }
}

CpuBind read_binding(const LaunchFlags& flags) {
  std::vector<CpuBind> given;
  if (!flags.cpu_bind.empty()) {
    given.push_back(launcher::parse_cpu_bind(flags.cpu_bind, "--cpu-bind"));
  }
  if (flags.bind_cores_to_rank) {
    given.push_back(CpuBind::kCores);
  }
  if (!flags.numa_binding.empty()) {
    if (flags.numa_binding != "node") {
      refuse_launch(fmt::format(
          "--numa-binding {} is not supported: it follows a rank's GPU, and Lockstep binds ranks "
          "by their number; expected node, or try --cpu-bind cores",
          flags.numa_binding));
    }
    given.push_back(CpuBind::kNuma);
  }
  if (std::any_of(
          given.begin(), given.end(), [&](CpuBind bind) { return bind != given.front(); })) {
    refuse_launch("--cpu-bind, --bind-cores-to-rank and --numa-binding differ; give only one");
  }
  return given.empty() ? CpuBind::kNone : given.front();
}

void read_ranks(const LaunchFlags& flags, const launcher::Machine& machine, JobOptions& options) {
  if (!flags.nproc_per_node.empty() && !flags.num_processes.empty()) {
    refuse_launch(
        "-n (--nproc-per-node) is the number of ranks of each host, --num-processes that of all "
        "hosts; give only one");
  }
  if (!flags.nproc_per_node.empty() && !(options.include.empty() && options.exclude.empty())) {
    refuse_launch(fmt::format(
        "-n (--num-gpus) contradicts {}, which selects the slots, one for each rank; give only one",
        options.include.empty() ? "--exclude" : "--include"));
  }
  if (!flags.nproc_per_node.empty()) {
    options.ranks = launcher::parse_ranks(flags.nproc_per_node, machine, "-n");
  } else if (!flags.num_processes.empty()) {
    const int ranks = launcher::parse_ranks(flags.num_processes, machine, "--num-processes");
    const bool is_number = parse_integer(flags.num_processes).has_value();
    options.ranks = is_number ? 0 : ranks;
    options.total_ranks = is_number ? ranks : 0;
  } else if (!options.hostfile.empty()) {
    options.ranks = 0;
  } else {
    refuse_launch(
        "the number of ranks is missing; give -n N, for instance -n 2, or -n auto for one rank per "
        "GPU or core");
  }
}

std::string read_devices(const std::string& text) {
  if (text == "all") {
    return "";
  }
  const size_t odd =
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789,-/:");
  if (odd != std::string::npos) {
    refuse_launch(fmt::format(
        "invalid value '{}' for --gpu-ids; expected numbers or UUIDs separated by commas, or all",
        text));
  }
  return text;
}

/// Adds the variables of the ranks that come from flags without a member of JobOptions.
void add_text_variables(const LaunchFlags& flags, JobOptions& options) {
  for (const config::SettingSpec& spec : config::all_flags()) {
    const auto* const text = std::get_if<std::string LaunchFlags::*>(&spec.text);
    const bool has_member = !std::holds_alternative<std::monostate>(spec.member);
    if (has_member || text == nullptr || (flags.*(*text)).empty()) {
      continue;
    }
    for (const config::RankVariable& variable : spec.rank_variables) {
      config::set_variable(options.env, {variable.name, flags.*(*text)});
    }
  }
}

}  // namespace

JobOptions job_options(
    const LaunchFlags& flags,
    const launcher::Machine& machine,
    const std::vector<std::string>& inherited) {
  JobOptions options = flags.options;
  options.nodes = flags.nnodes.empty() ? 1 : parse_node_count(flags.nnodes);
  read_ranks(flags, machine, options);
  read_rendezvous(flags, options);
  options.cpu_bind = read_binding(flags);
  options.visible_devices = read_devices(options.visible_devices);
  add_text_variables(flags, options);
  std::istringstream words(flags.launcher_args);
  options.starter_args = {
      std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
  prepare_starter(flags, Environment::process(), options);
  options.signals = launcher::parse_signals(flags.signals, "--signals-to-handle");
  for (const std::string& text : flags.env) {
    config::set_variable(options.env, launcher::parse_env_flag(text, inherited));
  }
  return options;
}

std::vector<std::string> command_of(
    const LaunchFlags& flags, const std::vector<std::string>& program) {
  if (program.empty()) {
    refuse_launch("the program is missing; expected it after the options, like -n 2 ./train");
  }
  if (!flags.alias) {
    return program;
  }
  if (!flags.module && !program.front().ends_with(".py")) {
    refuse_launch(fmt::format(
        "--alias needs a Python script or module, and '{}' has no .py in its name; for a module "
        "add "
        "-m, or call python -m lockstep.alias FILE in the program",
        program.front()));
  }
  std::vector<std::string> command = {kAliasModule};
  if (flags.module) {
    command.emplace_back("-m");
  }
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

launcher::ProgramKind program_kind(const LaunchFlags& flags) {
  if ((flags.module || flags.alias) && flags.no_python) {
    refuse_launch(fmt::format(
        "{} and --no-python contradict each other; give only one",
        flags.module ? "--module" : "--alias"));
  }
  if (flags.module || flags.alias) {
    return launcher::ProgramKind::kModule;
  }
  return flags.no_python ? launcher::ProgramKind::kBinary : launcher::ProgramKind::kAny;
}

}  // namespace lockstep::cli
