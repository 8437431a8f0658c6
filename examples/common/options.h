// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name.
class App;
class Validator;
}  // namespace CLI

namespace examples {

/// What every example takes on its command line.
struct CommonOptions {
  int64_t epochs = 1;
  int64_t steps = 0;  ///< Stop after so many updates; 0: when the epochs are done.
  int64_t batch_size = 64;
  uint64_t seed = 42;
  int64_t accumulation_steps = 1;
  int zero = 0;  ///< ZeRO's stage; 0: data parallel.
  std::string output;
  bool resume = false;
  bool json = false;
};

/// Adds --epochs, --steps, --batch-size, --accumulate, --zero, --seed, --output, --resume and
/// --json, with `options`' values as defaults.
void add_common_options(CLI::App& app, CommonOptions& options);

/// Checks of an option's value. Their messages say which numbers are allowed in words; those of
/// CLI11 print the limits of the type.
CLI::Validator positive_integer();
CLI::Validator non_negative_integer();
CLI::Validator positive_number();
CLI::Validator number_between(double least, double most);

/// Parses; an exit code if there is nothing left to do (--help) or the arguments make no sense (2).
/// Only the main process of a job prints.
std::optional<int> parse(CLI::App& app, int argc, char** argv);

/// ConfigError if `output` holds an earlier run that nobody asked to resume: two runs in one folder
/// would mix their logs.
void check_output(const std::filesystem::path& output, bool resume);

}  // namespace examples
