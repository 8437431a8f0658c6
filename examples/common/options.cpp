// SPDX-License-Identifier: Apache-2.0
#include "examples/common/options.h"

#include <iostream>
#include <sstream>

#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/world.h"

namespace examples {

void add_common_options(CLI::App& app, CommonOptions& options) {
  app.add_option("--epochs", options.epochs, "Passes over the training data")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option(
         "--steps", options.steps, "Stop after this many updates (0: when the epochs are done)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Samples per process and step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--accumulate", options.accumulation_steps, "Batches an update, on each process")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--zero", options.zero, "Stage of ZeRO: what each process has only a part of")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of the initial weights and of the order of samples")
      ->capture_default_str();
  app.add_option("--output", options.output, "Folder for logs, checkpoints and pictures")
      ->capture_default_str();
  // `lockstep launch --resume` says it to all it starts.
  app.add_flag("--resume", options.resume, "Go on from the newest checkpoint in --output")
      ->envname("LOCKSTEP_RESUME");
  app.add_flag(
      "--json", options.json, "Print the result as one JSON object on the last line of stdout");
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    const bool help = app.exit(error, out, err) == 0;
    if (lockstep::world_from_environment(lockstep::Environment::process()).rank == 0) {
      std::cout << out.str() << std::flush;
      std::cerr << err.str() << std::flush;
    }
    return help ? lockstep::kExitOk : lockstep::kExitUsage;
  }
}

void check_output(const std::filesystem::path& output, bool resume) {
  if (!resume && std::filesystem::exists(output / "logs")) {
    throw lockstep::ConfigError(
        "--output",
        output.string() +
            " holds an earlier run; add --resume to go on with it, or choose another --output");
  }
}

}  // namespace examples
