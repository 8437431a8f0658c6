// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/checkpoint/checkpoint_command.h"
#include "cli/common/arguments.h"
#include "cli/common/report.h"
#include "cli/common/usage_formatter.h"
#include "cli/completion/completion.h"
#include "cli/config/config_command.h"
#include "cli/ds_config/ds_config_command.h"
#include "cli/env/env_command.h"
#include "cli/estimate_memory/estimate_memory_command.h"
#include "cli/flight/flight_command.h"
#include "cli/launch/launch_command.h"
#include "cli/report/report_command.h"
#include "cli/schedule/schedule_command.h"
#include "cli/test/test_command.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/program/run_main.h"
#include "lockstep/launcher/job/fan_out.h"

namespace {

using lockstep::cli::Arguments;

/// Combines an option with the message of its check, "got 'x', expected ...".
std::string invalid_value(const std::string& option, const std::string& message) {
  const std::string got = "got ";
  const size_t expected = message.find(", expected ");
  if (!message.starts_with(got) || expected == std::string::npos) {
    return "invalid value for " + option + "; " + message;
  }
  return "invalid value " + message.substr(got.size(), expected - got.size()) + " for " + option +
         ";" + message.substr(expected + 1);
}

/// Returns "-n (--num-processes)" for the long name of an option that also has a short one.
std::string with_short_name(const CLI::App& app, const std::string& name) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
  }
  const CLI::Option* const option = command->get_option_no_throw(name);
  return option == nullptr || option->get_snames().empty()
             ? name
             : "-" + option->get_snames().front() + " (" + name + ")";
}

/// Formats an error of CLI11 like our own messages.
std::string parse_fault(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  const size_t colon = text.find(": ");
  if (colon == std::string::npos) {
    return text;
  }
  const std::string option = text.substr(0, colon);
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) {
    return with_short_name(app, option) + " was given more than once; expected it once";
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ValidationError)) {
    return invalid_value(option, text.substr(colon + 2));
  }
  return text;
}

/// Formats the program and the command of `arguments`: "lockstep launch".
std::string title_of(const Arguments& arguments) {
  std::string title = "lockstep";
  for (const std::string& word : arguments.own) {
    title += word.starts_with('-') ? "" : " " + word;
  }
  return title;
}

/// Parses the arguments; returns false after --help or --version.
bool parse(CLI::App& app, const Arguments& arguments) {
  try {
    // CLI11 takes the words in reverse order.
    app.parse(std::vector<std::string>(arguments.own.rbegin(), arguments.own.rend()));
    return true;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      app.exit(error);
      lockstep::cli::flush_stdout();
      return false;
    }
    throw lockstep::ConfigError(title_of(arguments), parse_fault(app, error));
  }
}

int dispatch(const std::vector<std::string>& words) {
  CLI::App app("Lockstep trains a model on many processes.", "lockstep");
  lockstep::cli::set_help(
      app, "lockstep COMMAND [OPTIONS]", "lockstep COMMAND --help describes one command.");
  app.set_version_flag("-V,--version", "lockstep " LOCKSTEP_VERSION, "Print the version and exit");
  const lockstep::cli::LaunchCommand launch(app);
  const lockstep::cli::CheckpointCommand checkpoint(app);
  const lockstep::cli::MergeWeightsCommand merge_weights(app);
  const lockstep::cli::EnvCommand env(app);
  const lockstep::cli::EstimateMemoryCommand estimate_memory(app);
  const lockstep::cli::ConfigCommand config(app);
  const lockstep::cli::DsConfigCommand ds_config(app);
  const lockstep::cli::ScheduleCommand schedule(app);
  const lockstep::cli::FlightCommand flight(app);
  const lockstep::cli::ReportCommand report(app);
  const lockstep::cli::TestCommand test(app);
  const lockstep::cli::ShellCommands shell(app);
  Arguments arguments = lockstep::cli::split_arguments(app, words);
  const std::vector<lockstep::cli::VariableOption> variables = launch.add_variables(arguments.own);
  try {
    if (!parse(app, arguments)) {
      return lockstep::kExitOk;
    }
    if (launch.was_given()) {
      return launch.run(arguments.program);
    }
  } catch (const lockstep::ConfigError& error) {
    lockstep::cli::rethrow_naming_variables(error, variables);
  }
  if (checkpoint.was_given()) {
    return checkpoint.run(arguments.words);
  }
  if (merge_weights.was_given()) {
    return merge_weights.run(arguments.words);
  }
  if (env.was_given()) {
    return env.run(arguments.words);
  }
  if (estimate_memory.was_given()) {
    return estimate_memory.run(arguments.words);
  }
  if (config.was_given()) {
    return config.run(arguments.words);
  }
  if (ds_config.was_given()) {
    return ds_config.run(arguments.words);
  }
  if (schedule.was_given()) {
    return schedule.run(arguments.words);
  }
  if (flight.was_given()) {
    return flight.run(arguments.words);
  }
  if (report.was_given()) {
    return report.run(arguments.words);
  }
  if (test.was_given()) {
    return test.run(arguments.words);
  }
  if (shell.was_given()) {
    return shell.run(arguments.words);
  }
  std::cerr << app.help();
  return lockstep::kExitUsage;
}

int fail(const std::exception& error, int exit_code) {
  // The message may have names of unknown origin.
  lockstep::log_error(lockstep::cli::printable(error.what()));
  return exit_code;
}

/// Returns whether a usage error is printed as JSON.
bool wants_json(const std::vector<std::string>& words) {
  // Later words belong to the program.
  const auto end = std::find(words.begin(), words.end(), "--");
  const auto has = [&](const char* word) { return std::find(words.begin(), end, word) != end; };
  return has("--json") && (words[0] != "launch" || has("--dry-run"));
}

int run(const std::vector<std::string>& words) {
  // An internal command, which `lockstep launch` starts on every host.
  if (words == std::vector<std::string>{"node"}) {
    return lockstep::launcher::run_node();
  }
  try {
    try {
      return dispatch(words);
    } catch (const lockstep::ConfigError&) {
      if (words.empty() || !wants_json(words)) {
        throw;
      }
      return lockstep::cli::print_report(
          "lockstep." + words[0], true, []() -> lockstep::cli::Report { throw; });
    }
  } catch (const lockstep::ConfigError& error) {
    return fail(error, lockstep::kExitUsage);
  } catch (const std::exception& error) {
    return fail(error, lockstep::kExitFailure);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run({argv + 1, argv + argc}); });
}
