// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/ScalarType.h>

#include "lockstep/base/enum_words.h"
#include "lockstep/base/float_dtype.h"
#include "lockstep/precision/precision.h"

namespace lockstep::internal {

/// Returns the value of an option for a message: a word, a number, "[a, b]"; "unset" for none.
inline std::string option_text(const char* value) {
  return value;
}

inline std::string option_text(at::ScalarType value) {
  return c10::toString(value);
}

inline std::string option_text(FloatDtype value) {
  return option_text(scalar_type_of(value));
}

inline std::string option_text(const std::vector<std::string>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

inline std::string option_text(const std::filesystem::path& value) {
  return value.string();
}

template <typename Value>
requires(std::is_enum_v<Value> || std::is_arithmetic_v<Value>) std::string
    option_text(Value value) {
  if constexpr (std::is_enum_v<Value>) {
    return word_of(value);
  } else {
    return fmt::format("{}", value);
  }
}

template <typename Value>
std::string option_text(const std::optional<Value>& value) {
  return value ? option_text(*value) : "unset";
}

}  // namespace lockstep::internal
