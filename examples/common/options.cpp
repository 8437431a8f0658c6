// SPDX-License-Identifier: Apache-2.0
#include "examples/common/options.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/host/world.h"
#include "lockstep/base/text/suggest.h"

namespace examples {
namespace {

/// Checks a number; adds nothing to the help.
CLI::Validator number_check(const std::function<bool(double)>& fits, const std::string& expected) {
  return {
      [=](const std::string& text) -> std::string {
        double number = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, number);
        const bool parsed = error == std::errc() && stop == end && std::isfinite(number);
        return parsed && fits(number) ? "" : "got '" + text + "', expected " + expected;
      },
      ""};
}

bool is_integer(double number) {
  constexpr double kMost = 1e15;  // Smaller integers are exact as doubles.
  return std::trunc(number) == number && std::abs(number) <= kMost;
}

/// Checks for a uint64_t, since doubles cannot represent all of them.
CLI::Validator seed_check() {
  return {
      [](const std::string& text) -> std::string {
        uint64_t seed = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, seed);
        const bool parsed = error == std::errc() && stop == end;
        return parsed ? ""
                      : "got '" + text + "', expected a whole number from 0 to " +
                            std::to_string(std::numeric_limits<uint64_t>::max());
      },
      ""};
}

/// Formats an error of the command line like Lockstep's messages.
std::string parse_fault(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining();
  if (!unknown.empty()) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
      names.push_back(option->get_name());
    }
    return "unknown argument " + unknown.front() + "; --help lists the options" +
           lockstep::did_you_mean(unknown.front(), names);
  }
  std::string text = error.what();
  const std::string conversion = "Could not convert: ";
  const size_t equals = text.find(" = ");
  if (text.starts_with(conversion) && equals != std::string::npos) {
    return "invalid value '" + text.substr(equals + 3) + "' for " +
           text.substr(conversion.size(), equals - conversion.size());
  }
  const std::string got = ": got ";
  const size_t option_end = text.find(got);
  const size_t expected = text.find(", expected ");
  if (option_end == std::string::npos || expected == std::string::npos) {
    return text;
  }
  const size_t value = option_end + got.size();
  return "invalid value " + text.substr(value, expected - value) + " for " +
         text.substr(0, option_end) + ";" + text.substr(expected + 1);
}

}  // namespace

CLI::Validator positive_integer() {
  return number_check(
      [](double number) { return is_integer(number) && number > 0; }, "a whole number above 0");
}

CLI::Validator non_negative_integer() {
  return number_check(
      [](double number) { return is_integer(number) && number >= 0; },
      "a whole number of at least 0");
}

CLI::Validator positive_number() {
  return number_check([](double number) { return number > 0; }, "a number above 0");
}

CLI::Validator number_between(double least, double most) {
  std::ostringstream expected;
  expected << "a number from " << least << " to " << most;
  return number_check(
      [=](double number) { return number >= least && number <= most; }, expected.str());
}

void add_common_options(CLI::App& app, CommonOptions& options) {
  app.add_option("--epochs", options.epochs, "Passes over the training data")
      ->check(positive_integer())
      ->capture_default_str();
  app.add_option(
         "--steps",
         options.steps,
         "Updates after which training stops; 0: at the end of the epochs")
      ->check(non_negative_integer())
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Samples of a batch, on each process")
      ->check(positive_integer())
      ->capture_default_str();
  app.add_option(
         "--accumulate", options.accumulation_steps, "Batches for one update, on each process")
      ->check(positive_integer())
      ->capture_default_str();
  app.add_option("--zero", options.zero, "Stage of ZeRO, from 0 (data parallel) to 3")
      ->check(number_check(
          [](double stage) { return stage == 0 || stage == 1 || stage == 2 || stage == 3; },
          "a stage from 0 to 3"))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of the initial weights and of the order of samples")
      ->check(seed_check())
      ->capture_default_str();
  app.add_option("--output", options.output, "Folder for logs, checkpoints and pictures")
      ->capture_default_str();
  // `lockstep launch --resume` sets this variable.
  app.add_flag("--resume", options.resume, "Resume from the newest checkpoint in --output")
      ->envname("LOCKSTEP_RESUME");
  app.add_flag(
      "--json", options.json, "Print the result as one JSON object on the last line of stdout");
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    const bool is_main =
        lockstep::world_from_environment(lockstep::Environment::process()).rank == 0;
    std::ostringstream out;
    if (app.exit(error, out, out) == 0) {
      std::cout << (is_main ? out.str() : "") << std::flush;
      return lockstep::kExitOk;
    }
    if (is_main) {
      std::cerr << "error: [" << std::filesystem::path(argv[0]).filename().string() << "] "
                << parse_fault(app, error) << "\n";
    }
    return lockstep::kExitUsage;
  }
}

void check_output(const std::filesystem::path& output, bool resume) {
  if (!resume && std::filesystem::exists(output / "logs")) {
    throw lockstep::ConfigError(
        "--output",
        output.string() +
            " has an earlier run; add --resume to continue it, or choose another --output");
  }
}

}  // namespace examples
