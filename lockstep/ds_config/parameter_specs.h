// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ds_config/key_specs.h"
#include "lockstep/ds_config/parameter_table.h"

/// How the sources of the tables of parameters write one down.
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

/// The first of `words` unless another is given.
inline ParameterSpec choice(std::string name, std::vector<std::string> words) {
  ParameterSpec spec = with_default(std::move(name), KeyKind::kChoice, 0, words.front());
  spec.key.choices = std::move(words);
  return spec;
}

/// One number for all parameter groups, or one for each.
inline ParameterSpec numbers(std::string name, double value) {
  return with_default(std::move(name), KeyKind::kNumbers, 0, std::vector<double>{value});
}

/// Must be given.
inline ParameterSpec required(ParameterSpec spec) {
  spec.default_value.reset();
  spec.required = true;
  return spec;
}

/// May be left out, which is no value of its own.
inline ParameterSpec optional(ParameterSpec spec) {
  spec.default_value.reset();
  spec.key.may_be_null = true;
  return spec;
}

inline ParameterSpec fixed(std::string name, KeyKind kind, std::string fine, std::string words) {
  return {.key = refused_unless(std::move(name), kind, std::move(fine), std::move(words))};
}

inline ParameterSpec without_effect(std::string name, std::string words) {
  ParameterSpec spec{.key = nothing(std::move(name), KeyKind::kBoolean, std::move(words))};
  spec.key.may_be_null = true;
  return spec;
}

inline TypeSpec refused_type(const std::string& name, const std::string& words) {
  return {.name = name, .words = words, .refused = true};
}

}  // namespace lockstep::ds_config
