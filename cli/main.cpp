// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/arguments.h"
#include "cli/launch_command.h"
#include "lockstep/base/error.h"
#include "lockstep/base/run_main.h"

namespace {

using lockstep::cli::Arguments;

/// Answers --help and --version here; returns false then.
bool parse(CLI::App& app, const Arguments& arguments) {
  try {
    // CLI11 wants the words in reverse.
    app.parse(std::vector<std::string>(arguments.own.rbegin(), arguments.own.rend()));
    return true;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      app.exit(error);
      return false;
    }
    throw lockstep::ConfigError("lockstep", error.what());
  }
}

int run(const std::vector<std::string>& words) {
  CLI::App app("Lockstep trains one network on many processes.", "lockstep");
  app.set_help_flag("-h,--help", "Print this and exit");
  app.set_version_flag("-V,--version", "lockstep " LOCKSTEP_VERSION);
  app.footer("lockstep COMMAND --help says more about one command.");
  const lockstep::cli::LaunchCommand launch(app);
  const Arguments arguments = lockstep::cli::split_arguments(app, words);
  if (!parse(app, arguments)) {
    return lockstep::kExitOk;
  }
  if (launch.was_given()) {
    return launch.run(arguments.program);
  }
  std::cerr << app.help();
  return lockstep::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run({argv + 1, argv + argc}); });
}
