// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// Checks that the value of an option is a whole number, or seconds, from `least` to `most`, in the
/// syntax of the configuration file. CLI11 alone would read 010 as eight, and accept nan.
CLI::Validator integer_between(int64_t least, int64_t most);
CLI::Validator seconds_between(double least, double most);
/// Checks for a decimal number, with or without exponent, from `least` to `most`.
CLI::Validator number_between(double least, double most);

}  // namespace lockstep::cli
