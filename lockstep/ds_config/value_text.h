// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/ds_config/choices.h"
#include "lockstep/ds_config/parameters.h"

namespace lockstep::ds_config {

/// Returns a value in the file's form; null if it is not set.
inline nlohmann::json json_of(bool value) {
  return value;
}
inline nlohmann::json json_of(int64_t value) {
  return value;
}
inline nlohmann::json json_of(double value) {
  return value;
}
inline nlohmann::json json_of(const std::string& value) {
  return value;
}
inline nlohmann::json json_of(const std::vector<double>& value) {
  return value;
}
inline nlohmann::json json_of(const std::vector<std::string>& value) {
  return value;
}
inline nlohmann::json json_of(const std::filesystem::path& value) {
  return value.empty() ? nlohmann::json(nullptr) : nlohmann::json(value.string());
}
template <typename E, std::enable_if_t<std::is_enum_v<E>, int> = 0>
nlohmann::json json_of(E value) {
  return word_of(value);
}
nlohmann::json json_of(const ParameterValue& value);
template <typename T>
nlohmann::json json_of(const std::optional<T>& value) {
  return value ? json_of(*value) : nlohmann::json(nullptr);
}

/// Formats it for people: "-" if not set, numbers as short as possible, a list of one number as
/// that number.
std::string text_of(const nlohmann::json& value);

}  // namespace lockstep::ds_config
