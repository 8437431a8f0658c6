// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ds_config/keys/key_specs.h"
#include "lockstep/ds_config/parameters/parameter_table.h"

/// Functions that create rows of the tables of parameters.
namespace lockstep::ds_config {

inline ParameterSpec with_default(
    std::string name, KeyKind kind, double least, std::optional<ParameterValue> value) {
  return {
      .key =
          {.path = std::move(name), .kind = kind, .least = least, .auto_rule = AutoRule::kRefused},
      .default_value = std::move(value)};
}

inline ParameterSpec number(std::string name, double least, double value) {
  return with_default(std::move(name), KeyKind::kNumber, least, value);
}

inline ParameterSpec count(std::string name, double least, int64_t value) {
  return with_default(std::move(name), KeyKind::kInteger, least, value);
}

inline ParameterSpec flag(std::string name, bool value) {
  return with_default(std::move(name), KeyKind::kBoolean, 0, value);
}

/// Creates a choice. The first of `words` is the default.
inline ParameterSpec choice(std::string name, std::vector<std::string> words) {
  ParameterSpec spec = with_default(std::move(name), KeyKind::kChoice, 0, words.front());
  spec.key.choices = std::move(words);
  return spec;
}

/// Creates a parameter with one number for all parameter groups, or one for each.
inline ParameterSpec numbers(std::string name, double value) {
  return with_default(std::move(name), KeyKind::kNumbers, 0, std::vector<double>{value});
}

inline ParameterSpec required(ParameterSpec spec) {
  spec.default_value.reset();
  spec.required = true;
  return spec;
}

inline ParameterSpec optional(ParameterSpec spec) {
  spec.default_value.reset();
  spec.key.may_be_null = true;
  return spec;
}

inline ParameterSpec fixed(
    std::string name, KeyKind kind, std::string accepted_value, std::string description) {
  return {
      .key =
          refused_unless(std::move(name), kind, std::move(accepted_value), std::move(description))};
}

inline ParameterSpec without_effect(std::string name, std::string description) {
  ParameterSpec spec{.key = ignored(std::move(name), KeyKind::kBoolean, std::move(description))};
  spec.key.may_be_null = true;
  return spec;
}

inline TypeSpec refused_type(const std::string& name, const std::string& words) {
  return {.name = name, .description = words, .refused = true};
}

}  // namespace lockstep::ds_config
