// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// For the value of an option: a whole number from `least` to `most`, or seconds, written as a
/// configuration has them: CLI11 by itself takes 010 for eight, and nan for any number.
CLI::Validator integer_between(int64_t least, int64_t most);
CLI::Validator seconds_between(double least, double most);
/// Any decimal number, 1e-3 too, from `least` to `most`.
CLI::Validator number_between(double least, double most);

}  // namespace lockstep::cli
