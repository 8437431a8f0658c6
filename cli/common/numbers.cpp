// SPDX-License-Identifier: Apache-2.0
#include "cli/common/numbers.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "lockstep/config/document/scalars.h"

namespace lockstep::cli {
namespace {

template <typename Number>
CLI::Validator between(
    std::optional<Number> (*parse)(const std::string&),
    Number least,
    Number most,
    const char* expected) {
  return {
      [=](const std::string& text) -> std::string {
        const std::optional<Number> number = parse(text);
        if (number && *number >= least && *number <= most) {
          return "";
        }
        return fmt::format(
            "got '{}', expected {} from {} to {}{}",
            text,
            expected,
            least,
            most,
            number
                ? ""
                : config::number_hint(text, static_cast<double>(least), static_cast<double>(most)));
      },
      ""};  // The help says nothing of it.
}

std::optional<double> number_with_exponent(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end && std::isfinite(number) ? std::optional(number)
                                                                      : std::nullopt;
}

}  // namespace

CLI::Validator integer_between(int64_t least, int64_t most) {
  return between<int64_t>(config::integer_value, least, most, "a whole number");
}

CLI::Validator number_between(double least, double most) {
  return between<double>(number_with_exponent, least, most, "a number");
}

CLI::Validator seconds_between(double least, double most) {
  return between<double>(config::decimal_number, least, most, "seconds");
}

}  // namespace lockstep::cli
