// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/variable_name.h"
#include "lockstep/base/text/words.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/setting_table.h"

namespace lockstep::config {
namespace {

using Type = SettingType;

}  // namespace

std::string expected_of(const SettingSpec& spec) {
  switch (spec.type) {
    case Type::kInteger: {
      const std::string number = fmt::format("a whole number from {} to {}", spec.min, spec.max);
      return spec.choices.empty()
                 ? number
                 : fmt::format("{}, or one of {}", number, fmt::join(spec.choices, ", "));
    }
    case Type::kChoice:
      return fmt::format("one of {}", fmt::join(spec.choices, ", "));
    case Type::kBoolean:
      return "true or false";
    case Type::kSeconds:
      return fmt::format("seconds from {} to {}, like 30 or 0.5", spec.min, spec.max);
    case Type::kPath:
      return "a path";
    case Type::kText:
      return "text";
    case Type::kVariables:
      return "names and values";
  }
  LOCKSTEP_ASSERT(false, "a type of setting without words for it");
}

void check_value(
    const SettingSpec& spec,
    const std::string& text,
    const std::string& where,
    const std::string& subject) {
  const auto is_choice = [&] {
    return std::find(spec.choices.begin(), spec.choices.end(), text) != spec.choices.end();
  };
  bool fits = !text.empty();
  std::string expected = expected_of(spec);
  std::string hint;
  const auto min = static_cast<double>(spec.min);
  const auto max = static_cast<double>(spec.max);
  if (spec.type == Type::kInteger) {
    const auto number = integer_value(text);
    fits = (number && *number >= spec.min && *number <= spec.max) || is_choice();
    hint = number ? "" : number_hint(text, min, max);
  } else if (spec.type == Type::kChoice) {
    fits = is_choice();
  } else if (spec.type == Type::kBoolean) {
    fits = truth_value(text).has_value();
  } else if (spec.type == Type::kSeconds) {
    const auto seconds = decimal_number(text);
    fits = seconds && *seconds >= min && *seconds <= max;
    hint = seconds ? "" : number_hint(text, min, max);
  } else if (fits && spec.check != nullptr) {
    const std::string wanted = spec.check(text);
    fits = wanted.empty();
    expected = fits ? expected : wanted;
  }
  if (fits) {
    return;
  }
  if (hint.empty()) {
    hint = did_you_mean(text, spec.choices);
  }
  throw ConfigError(
      where,
      fmt::format("{} makes no sense; got '{}', expected {}{}", subject, text, expected, hint));
}

void check_variable_name(const std::string& name, const std::string& where) {
  if (!is_variable_name(name)) {
    throw ConfigError(
        where,
        fmt::format(
            "no program can have a variable of that name; got '{}', expected letters, digits and "
            "_, like NCCL_DEBUG",
            name));
  }
  if (is_set_by_launcher(name)) {
    throw ConfigError(
        where, fmt::format("{} is what a launch sets itself, for each process; remove it", name));
  }
}

}  // namespace lockstep::config
