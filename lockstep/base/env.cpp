// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/env.h"

#include <charconv>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"

namespace lockstep {

Environment Environment::process() {
  return Environment([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

Environment Environment::of(std::map<std::string, std::string> values) {
  return Environment(
      [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
        const auto found = values.find(name);
        return found == values.end() ? std::nullopt : std::optional<std::string>(found->second);
      });
}

std::optional<std::string> Environment::text(const std::string& name) const {
  std::optional<std::string> value = lookup_(name);
  if (value && value->empty()) {
    value.reset();
  }
  return value;
}

std::optional<int64_t> Environment::integer(
    const std::string& name, int64_t min, int64_t max) const {
  const std::optional<std::string> value = text(name);
  if (!value) {
    return std::nullopt;
  }
  const std::optional<int64_t> number = parse_integer(*value);
  if (!number || *number < min || *number > max) {
    throw ConfigError(
        "environment",
        fmt::format(
            "invalid value '{}' for {}; expected a whole number from {} to {}; correct it, or "
            "unset "
            "it",
            *value,
            name,
            min,
            max));
  }
  return number;
}

std::optional<bool> Environment::boolean(const std::string& name) const {
  const std::optional<std::string> value = text(name);
  if (!value) {
    return std::nullopt;
  }
  const std::optional<bool> truth = truth_value(*value);
  if (!truth) {
    throw ConfigError(
        "environment",
        fmt::format(
            "invalid value '{}' for {}; expected 1 or 0, true or false, yes or no", *value, name));
  }
  return truth;
}

std::optional<int64_t> parse_integer(const std::string& text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || text.empty()) {
    return std::nullopt;
  }
  return number;
}

}  // namespace lockstep
