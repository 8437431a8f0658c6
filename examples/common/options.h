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

/// Holds the options of every example.
struct CommonOptions {
  int64_t epochs = 1;
  int64_t steps = 0;  ///< Updates after which training stops; 0: no limit.
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

/// Returns a check of an option's value. Its message describes the allowed numbers in words;
/// CLI11's messages have the limits of the type.
CLI::Validator positive_integer();
CLI::Validator non_negative_integer();
CLI::Validator positive_number();
CLI::Validator number_between(double least, double most);

/// Parses the arguments. Returns an exit code after --help (0) and for invalid arguments (2). Only
/// the main process of a job prints.
std::optional<int> parse(CLI::App& app, int argc, char** argv);

/// Throws ConfigError if `output` has an earlier run and `resume` is false. Two runs in one folder
/// would mix their logs.
void check_output(const std::filesystem::path& output, bool resume);

}  // namespace examples
