// SPDX-License-Identifier: Apache-2.0
#include "cli/config/settings_report.h"

#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/text/words.h"
#include "lockstep/config/config_file.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/settings/setting_table.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::json;
using config::SettingSpec;
using config::SettingType;

/// Returns numbers and booleans as such, other texts as strings.
Json json_of(const SettingSpec& spec, const std::string& text) {
  if (text.empty()) {
    return nullptr;
  }
  if (spec.type == SettingType::kBoolean) {
    return truth_value(text).value_or(false);
  }
  const auto number =
      spec.type == SettingType::kInteger ? config::integer_value(text) : std::nullopt;
  if (number) {
    return *number;
  }
  const auto seconds =
      spec.type == SettingType::kSeconds ? config::decimal_number(text) : std::nullopt;
  return seconds ? Json(*seconds) : Json(text);
}

}  // namespace

Report settings_report(const config::Settings& settings, const std::optional<std::string>& file) {
  std::vector<std::vector<std::string>> rows = {{"SETTING", "VALUE", "SOURCE"}};
  Json list = Json::array();
  for (const SettingSpec& spec : config::all_settings()) {
    if (spec.type == SettingType::kVariables) {
      continue;
    }
    const config::Setting& setting = settings.at(spec.name);
    const bool is_set = !setting.text.empty();
    rows.push_back(
        {spec.name,
         is_set ? printable(setting.text) : "-",
         is_set ? printable(setting.origin) : "not set: " + spec.unset});
    list.push_back(
        {{"name", spec.name},
         {"value", json_of(spec, setting.text)},
         {"origin", is_set ? Json(setting.origin) : Json(nullptr)},
         {"flag", spec.flag},
         {"variables", spec.variables}});
  }
  Json variables = Json::array();
  for (const auto& [name, setting] : settings.variables()) {
    rows.push_back({"env: " + name, printable(setting.text), printable(setting.origin)});
    variables.push_back({{"name", name}, {"value", setting.text}, {"origin", setting.origin}});
  }
  Report report;
  report.text = "configuration: " + (file ? printable(*file) : std::string("no file")) + "\n\n" +
                render_table(rows, {false, false, false}, terminal_columns());
  report.json = {
      {"version", 1},
      {"config_file", file ? Json(*file) : Json(nullptr)},
      {"settings", list},
      {"env", variables}};
  return report;
}

Report own_settings_report(const std::optional<std::string>& chosen_file) {
  const Environment environment = Environment::process();
  const auto file = config::read_config(chosen_file, environment);
  return settings_report(
      config::resolve({}, environment, file), file ? std::optional(file->path) : std::nullopt);
}

}  // namespace lockstep::cli
