// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/parameters/parameter_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/text/words.h"
#include "lockstep/ds_config/value_text.h"

namespace lockstep::ds_config {
namespace {

std::string text_of_parameter(const ParameterSpec& spec) {
  const KeySpec& key = spec.key;
  if (key.status == KeyStatus::kRefused) {
    return fmt::format(
        "`{}` is refused{}",
        key.path,
        key.accepted_value.empty() ? "" : " unless " + key.accepted_value);
  }
  if (key.status == KeyStatus::kIgnored) {
    return fmt::format("`{}` is ignored", key.path);
  }
  if (spec.default_value) {
    return fmt::format("`{}` {}", key.path, text_of(json_of(*spec.default_value)));
  }
  return fmt::format("`{}`{}", key.path, spec.required ? " (required)" : "");
}

}  // namespace

const TypeSpec* find_type(
    const std::vector<TypeSpec>& types, const std::string& name, bool any_case) {
  const auto found = std::find_if(types.begin(), types.end(), [&](const TypeSpec& type) {
    return any_case ? lower(type.name) == lower(name) : type.name == name;
  });
  return found == types.end() ? nullptr : &*found;
}

TableRows type_rows(const std::vector<TypeSpec>& types) {
  TableRows rows = {{"type", "description", "parameters and defaults"}};
  for (const TypeSpec& type : types) {
    std::string parameters;
    for (const ParameterSpec& spec : type.parameters) {
      parameters += (parameters.empty() ? "" : ", ") + text_of_parameter(spec);
    }
    rows.push_back(
        {fmt::format("`{}`", type.name),
         type.refused ? "refused: " + type.description : type.description,
         parameters});
  }
  return rows;
}

}  // namespace lockstep::ds_config
