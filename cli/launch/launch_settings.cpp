// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/launch_flags.h"
#include "lockstep/config/config_file.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::cli {
namespace {

using config::Settings;
using config::SettingSpec;

bool is_given(const CLI::App& command, const std::string& flag) {
  return command.get_option(flag)->count() > 0;
}

bool is_overridden(const CLI::App& command, const SettingSpec& spec) {
  return is_given(command, spec.flag) ||
         std::any_of(
             spec.overriding_flags.begin(),
             spec.overriding_flags.end(),
             [&command](const std::string& flag) { return is_given(command, flag); });
}

/// Returns whether the environment or the file sets `name`.
bool is_configured(const Settings& settings, const std::string& name) {
  return settings.is_set(name) && settings.at(name).origin != "default" &&
         !settings.at(name).origin.starts_with("--");
}

/// Returns the number of hosts and the index of this host, as the flags give them. They are checked
/// together with the values of the other sources.
std::vector<config::FlagValue> given_hosts(const CLI::App& command, const LaunchFlags& flags) {
  if (is_given(command, "--standalone") || flags.nnodes == "1") {
    const char* const flag = is_given(command, "--standalone") ? "--standalone" : "--nnodes";
    return {{"num_machines", flag, "1"}, {"machine_rank", flag, "0"}};
  }
  std::vector<config::FlagValue> given;
  // job_options() parses torchrun's ranges like 2:2.
  if (config::integer_value(flags.nnodes)) {
    given.push_back({"num_machines", "--nnodes", flags.nnodes});
  }
  if (is_given(command, "--node-rank")) {
    given.push_back({"machine_rank", "--node-rank", std::to_string(flags.options.node_rank)});
  }
  return given;
}

/// Returns whether another setting makes the configured value of `name` meaningless.
bool is_unused(const CLI::App& command, const Settings& settings, const std::string& name) {
  const bool of_machines = name == "num_machines" || name == "machine_rank";
  if (of_machines && is_configured(settings, "hostfile")) {
    return true;
  }
  const bool one_by_flag = settings.at("num_machines").text == "1" &&
                           settings.at("num_machines").origin.starts_with("--");
  if ((of_machines || name == "main_process_ip") && one_by_flag) {
    return true;
  }
  // A hostfile on the command line names other hosts than the file was written for.
  if (name == "launcher" && settings.at(name).text == "local") {
    return is_given(command, "--hostfile");
  }
  // The ranks inherit OMP_NUM_THREADS.
  return settings.at(name).origin == "OMP_NUM_THREADS";
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
    config::set_variable(all.options.env, {name, variable.text});
  }
  for (const SettingSpec& spec : config::all_settings()) {
    if (spec.type != config::SettingType::kVariables && is_configured(settings, spec.name) &&
        !is_overridden(command, spec) && !is_unused(command, settings, spec.name)) {
      config::set_value(spec, settings.at(spec.name).text, all);
    }
  }
  return all;
}

}  // namespace lockstep::cli
