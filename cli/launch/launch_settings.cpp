// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_settings.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/config_file.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/settings/settings.h"
#include "lockstep/launcher/plan/rank_environment.h"

namespace lockstep::cli {
namespace {

using config::Settings;

/// A setting, the flags that overrule it, and where its value goes.
struct Target {
  const char* setting;
  std::vector<const char*> flags;
  std::function<void(LaunchFlags& flags, const std::string& text)> set;
};

/// The field of the options that a text goes to as it is.
auto to_text(std::string launcher::JobOptions::*field) {
  return [field](LaunchFlags& flags, const std::string& text) { flags.options.*field = text; };
}

auto to_flag_text(std::string LaunchFlags::*field) {
  return [field](LaunchFlags& flags, const std::string& text) { flags.*field = text; };
}

auto to_number(int launcher::JobOptions::*field) {
  return [field](LaunchFlags& flags, const std::string& text) {
    flags.options.*field = static_cast<int>(parse_integer(text).value());
  };
}

std::vector<Target> targets() {
  using Options = launcher::JobOptions;
  return {
      {"num_processes",
       {"--nproc-per-node", "--num-processes"},
       to_flag_text(&LaunchFlags::num_processes)},
      {"num_machines",
       {"--nnodes", "--standalone", "--hostfile"},
       to_flag_text(&LaunchFlags::nnodes)},
      {"machine_rank",
       {"--node-rank", "--standalone", "--hostfile"},
       to_number(&Options::node_rank)},
      {"main_process_ip",
       {"--master-addr", "--rdzv-endpoint", "--standalone"},
       to_text(&Options::master_addr)},
      {"main_process_port",
       {"--master-port", "--rdzv-endpoint", "--standalone"},
       to_number(&Options::master_port)},
      {"mixed_precision", {"--mixed-precision"}, to_text(&Options::mixed_precision)},
      {"gradient_accumulation_steps",
       {"--gradient-accumulation-steps"},
       to_number(&Options::gradient_accumulation_steps)},
      {"zero_stage", {"--zero-stage"}, to_text(&Options::zero_stage)},
      {"launcher",
       {"--launcher"},
       [](LaunchFlags& flags, const std::string& text) {
         // A hostfile on the command line is of other hosts, whatever the file is made for.
         flags.launcher = text == "local" && !flags.options.hostfile.empty() ? "" : text;
       }},
      {"hostfile", {"--hostfile", "--nnodes", "--standalone"}, to_text(&Options::hostfile)},
      {"include", {"--include", "--exclude"}, to_text(&Options::include)},
      {"exclude", {"--exclude", "--include"}, to_text(&Options::exclude)},
      {"max_restarts", {"--max-restarts"}, to_number(&Options::max_restarts)},
      {"log_dir", {"--log-dir"}, to_text(&Options::log_dir)},
      {"redirects", {"--redirects"}, to_text(&Options::redirects)},
      {"tee", {"--tee"}, to_text(&Options::tee)},
      {"cpu_bind",
       {"--cpu-bind", "--bind-cores-to-rank", "--numa-binding"},
       to_flag_text(&LaunchFlags::cpu_bind)},
      {"deepspeed_config_file",
       {"--deepspeed-config-file"},
       to_flag_text(&LaunchFlags::deepspeed_config_file)}};
}

struct SecondsTarget {
  const char* setting;
  const char* flag;
  double launcher::JobOptions::*field;
};

constexpr SecondsTarget kSeconds[] = {
    {"restart_backoff_seconds",
     "--restart-backoff-seconds",
     &launcher::JobOptions::restart_backoff_seconds},
    {"stall_timeout_seconds", "--stall-timeout", &launcher::JobOptions::stall_timeout_seconds},
    {"grace_seconds", "--grace-seconds", &launcher::JobOptions::grace_seconds},
    {"join_timeout_seconds", "--join-timeout", &launcher::JobOptions::join_timeout_seconds},
    {"timeout_seconds", "--timeout", &launcher::JobOptions::timeout_seconds}};

bool is_given(const CLI::App& command, const char* flag) {
  return command.get_option(flag)->count() > 0;
}

/// Somebody has said it, though not by a flag.
bool is_said(const Settings& settings, const char* name) {
  return settings.is_set(name) && settings.at(name).origin != "default" &&
         !settings.at(name).origin.starts_with("--");
}

/// What the flags say of the hosts, which only makes sense together with what others say of them.
std::vector<config::FlagValue> given_hosts(const CLI::App& command, const LaunchFlags& flags) {
  if (is_given(command, "--standalone") || flags.nnodes == "1") {
    const char* const flag = is_given(command, "--standalone") ? "--standalone" : "--nnodes";
    return {{"num_machines", flag, "1"}, {"machine_rank", flag, "0"}};
  }
  std::vector<config::FlagValue> given;
  if (config::integer_value(
          flags.nnodes)) {  // Else it is refused later, with what torchrun's mean.
    given.push_back({"num_machines", "--nnodes", flags.nnodes});
  }
  if (is_given(command, "--node-rank")) {
    given.push_back({"machine_rank", "--node-rank", std::to_string(flags.options.node_rank)});
  }
  return given;
}

/// Settings that say nothing more, since another one says which hosts there are.
bool is_idle(const Settings& settings, const std::string& name) {
  const bool of_machines = name == "num_machines" || name == "machine_rank";
  const bool one_by_flag = settings.at("num_machines").text == "1" &&
                           settings.at("num_machines").origin.starts_with("--");
  return (of_machines && is_said(settings, "hostfile")) ||
         ((of_machines || name == "main_process_ip") && one_by_flag);
}

void set_threads(const Settings& settings, LaunchFlags& flags) {
  const config::Setting& threads = settings.at("num_cpu_threads_per_process");
  if (threads.origin == "OMP_NUM_THREADS" || !is_said(settings, "num_cpu_threads_per_process")) {
    return;  // The ranks inherit it as it is.
  }
  if (const auto number = parse_integer(threads.text)) {
    flags.options.threads_per_rank = static_cast<int>(*number);
  } else {
    launcher::set_variable(flags.options.env, {"OMP_NUM_THREADS", threads.text});
  }
}

}  // namespace

LaunchFlags with_settings(
    const CLI::App& command, const LaunchFlags& flags, const Environment& environment) {
  const std::optional<std::string> chosen =
      flags.config_file.empty() ? std::nullopt : std::optional(flags.config_file);
  const Settings settings = config::resolve(
      given_hosts(command, flags), environment, config::read_config(chosen, environment));
  LaunchFlags all = flags;
  for (const auto& [name, variable] : settings.variables()) {
    launcher::set_variable(all.options.env, {name, variable.text});
  }
  for (const Target& target : targets()) {
    const bool overruled =
        std::any_of(target.flags.begin(), target.flags.end(), [&command](const char* flag) {
          return is_given(command, flag);
        });
    if (!overruled && is_said(settings, target.setting) && !is_idle(settings, target.setting)) {
      target.set(all, settings.at(target.setting).text);
    }
  }
  for (const SecondsTarget& target : kSeconds) {
    if (!is_given(command, target.flag) && is_said(settings, target.setting)) {
      all.options.*target.field = settings.seconds(target.setting).value();
    }
  }
  if (!is_given(command, "--threads-per-rank")) {
    set_threads(settings, all);
  }
  all.options.rank_prefix |= is_said(settings, "rank_prefix") && settings.boolean("rank_prefix");
  all.options.debug |= is_said(settings, "debug") && settings.boolean("debug");
  return all;
}

}  // namespace lockstep::cli
