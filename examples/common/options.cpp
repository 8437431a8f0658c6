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

/// Refuses numbers that do not fit, and says what was expected. It adds nothing to the help.
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
  constexpr double kMost = 1e15;  // Up to here each whole number is a double of its own.
  return std::trunc(number) == number && std::abs(number) <= kMost;
}

/// Refuses what is no uint64_t; doubles have not enough digits for all of them.
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

/// Formats a fault of the command line as Lockstep's errors read.
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
    return text.substr(conversion.size(), equals - conversion.size()) + " makes no sense; got '" +
           text.substr(equals + 3) + "'";
  }
  const size_t got = text.find(": got ");
  return got == std::string::npos ? text : text.replace(got, 2, " makes no sense; ");
}

}  // namespace

CLI::Validator positive_integer() {
  return number_check(
      [](double number) { return is_integer(number) && number > 0; }, "a whole number above 0");
}

CLI::Validator non_negative_integer() {
  return number_check(
      [](double number) { return is_integer(number) && number >= 0; },
      "a whole number that is not negative");
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
         "--steps", options.steps, "Stop after this many updates (0: when the epochs are done)")
      ->check(non_negative_integer())
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Samples per process and step")
      ->check(positive_integer())
      ->capture_default_str();
  app.add_option("--accumulate", options.accumulation_steps, "Batches an update, on each process")
      ->check(positive_integer())
      ->capture_default_str();
  app.add_option("--zero", options.zero, "Stage of ZeRO: what each process has only a part of")
      ->check(number_check(
          [](double stage) { return stage == 0 || stage == 1 || stage == 2 || stage == 3; },
          "a stage from 0 to 3"))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of the initial weights and of the order of samples")
      ->check(seed_check())
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
            " holds an earlier run; add --resume to go on with it, or choose another --output");
  }
}

}  // namespace examples
