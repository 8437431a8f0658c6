// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/value_text.h"

#include <cmath>

#include <fmt/format.h>

namespace lockstep::ds_config {

nlohmann::json json_of(const ParameterValue& value) {
  nlohmann::json json = std::visit([](const auto& held) -> nlohmann::json { return held; }, value);
  for (nlohmann::json& item : json) {
    if (json.is_array() && std::isnan(item.get<double>())) {
      item = nullptr;
    }
  }
  return json;
}

std::string text_of(const nlohmann::json& value) {
  if (value.is_null() || (value.is_string() && value.get<std::string>().empty())) {
    return "-";
  }
  if (value.is_array() && value.size() == 1 && value[0].is_number()) {
    return text_of(value[0]);
  }
  if (value.is_array()) {
    std::string text;
    for (const nlohmann::json& item : value) {
      text += (text.empty() ? "" : ", ") + (item.is_null() ? "null" : text_of(item));
    }
    return "[" + text + "]";
  }
  if (value.is_number_float()) {
    return fmt::format("{}", value.get<double>());
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace lockstep::ds_config
