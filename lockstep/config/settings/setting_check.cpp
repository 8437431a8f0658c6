// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/variable_name.h"
#include "lockstep/base/text/words.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/settings/setting_table.h"

namespace lockstep::config {
namespace {

using Type = SettingType;

bool is_in_range(const SettingSpec& spec, double number) {
  return number >= spec.min && number <= spec.max;
}

}  // namespace

std::string expected_of(const SettingSpec& spec) {
  switch (spec.type) {
    case Type::kInteger: {
      const std::string number = fmt::format(
          "a whole number from {} to {}",
          static_cast<int64_t>(spec.min),
          static_cast<int64_t>(spec.max));
      const std::vector<std::string> words = non_integer_choices(spec);
      return words.empty() ? number
                           : fmt::format("{}, or one of {}", number, fmt::join(words, ", "));
    }
    case Type::kChoice:
      return fmt::format("one of {}", fmt::join(choice_values(spec), ", "));
    case Type::kBoolean:
      return "true or false";
    case Type::kSeconds:
      return fmt::format(
          "seconds from {} to {}, like 30 or 0.5",
          static_cast<int64_t>(spec.min),
          static_cast<int64_t>(spec.max));
    case Type::kPath:
      return "a path";
    case Type::kText:
      return "text";
    case Type::kVariables:
      return "names and values";
  }
  LOCKSTEP_ASSERT(false, "a type of setting without a description");
}

void check_value(
    const SettingSpec& spec,
    const std::string& text,
    const std::string& where,
    const std::string& subject) {
  const std::vector<std::string> choices = choice_values(spec);
  const bool is_choice = std::find(choices.begin(), choices.end(), text) != choices.end();
  bool is_valid = !text.empty();
  std::string expected = expected_of(spec);
  std::string hint;
  if (spec.type == Type::kInteger) {
    const auto number = integer_value(text);
    is_valid = is_choice || (number && is_in_range(spec, static_cast<double>(*number)));
    hint = number ? "" : number_hint(text, spec.min, spec.max);
  } else if (spec.type == Type::kChoice) {
    is_valid = is_choice;
  } else if (spec.type == Type::kBoolean) {
    is_valid = truth_value(text).has_value();
  } else if (spec.type == Type::kSeconds) {
    const auto seconds = decimal_number(text);
    is_valid = seconds && is_in_range(spec, *seconds);
    hint = seconds ? "" : number_hint(text, spec.min, spec.max);
  } else if (spec.check != nullptr) {
    const std::string wanted = spec.check(text);
    is_valid = is_valid && wanted.empty();
    expected = wanted.empty() ? expected : wanted;
  }
  if (is_valid) {
    return;
  }
  if (hint.empty()) {
    hint = did_you_mean(text, non_integer_choices(spec));
  }
  throw ConfigError(
      where,
      fmt::format("invalid value '{}' for {}; expected {}{}", text, subject, expected, hint));
}

void check_variable_name(const std::string& name, const std::string& where) {
  if (!is_variable_name(name)) {
    throw ConfigError(
        where,
        fmt::format(
            "invalid name '{}' for a variable; expected letters, digits and _, like NCCL_DEBUG",
            name));
  }
  if (is_set_by_launcher(name)) {
    throw ConfigError(
        where, fmt::format("{} is set by lockstep launch, for each rank; remove it", name));
  }
}

}  // namespace lockstep::config
