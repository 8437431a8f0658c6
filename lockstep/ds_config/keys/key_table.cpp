// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/keys/key_table.h"

#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/ds_config/keys/key_specs.h"
#include "lockstep/ds_config/value_text.h"

namespace lockstep::ds_config {
namespace {

std::vector<KeySpec> join_parts() {
  std::vector<KeySpec> keys;
  for (const auto part :
       {batch_and_precision_keys,
        zero_keys,
        watching_keys,
        activation_keys,
        parallel_keys,
        refused_keys}) {
    for (KeySpec& spec : part()) {
      keys.push_back(std::move(spec));
    }
  }
  return keys;
}

std::string section_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

/// Returns the text of the default for each path.
std::map<std::string, std::string> defaults() {
  std::map<std::string, std::string> texts;
  const DsConfig config;
  visit_fields(config, [&](const std::string& path, const auto& field) {
    texts[path] = text_of(json_of(field.value));
  });
  return texts;
}

std::string status_text(const KeySpec& spec) {
  if (!spec.successor.empty()) {
    return "other name";
  }
  switch (spec.status) {
    case KeyStatus::kWorks:
      return "works";
    case KeyStatus::kIgnored:
      return "ignored";
    case KeyStatus::kRefused:
      return spec.accepted_value.empty() ? "refused"
                                         : fmt::format("refused unless {}", spec.accepted_value);
  }
  return "";
}

}  // namespace

const std::vector<KeySpec>& all_keys() {
  static const std::vector<KeySpec> keys = join_parts();
  return keys;
}

const KeySpec* find_key(const std::string& path) {
  static const auto by_path = [] {
    std::map<std::string, const KeySpec*> map;
    for (const KeySpec& spec : all_keys()) {
      map[spec.path] = &spec;
    }
    return map;
  }();
  const auto found = by_path.find(path);
  return found == by_path.end() ? nullptr : found->second;
}

std::vector<std::string> keys_of(const std::string& section) {
  std::vector<std::string> names;
  for (const KeySpec& spec : all_keys()) {
    if (section_of(spec.path) == section) {
      names.push_back(spec.path.substr(section.empty() ? 0 : section.size() + 1));
    }
  }
  return names;
}

TableRows key_rows() {
  const std::map<std::string, std::string> texts = defaults();
  TableRows rows = {{"key", "default", "status", "description"}};
  for (const KeySpec& spec : all_keys()) {
    if (spec.kind == KeyKind::kSection && spec.description.empty()) {
      continue;  // Only its keys have rows.
    }
    const auto text = texts.find(spec.path);
    std::string description = spec.description;
    if (!spec.choices.empty() && spec.status == KeyStatus::kWorks) {
      description += fmt::format(": {}", fmt::join(spec.choices, ", "));
    }
    rows.push_back(
        {fmt::format("`{}`", spec.path),
         text == texts.end() ? "" : text->second,
         status_text(spec),
         description});
  }
  return rows;
}

std::string render_markdown(const TableRows& rows) {
  std::string table;
  for (const std::vector<std::string>& row : rows) {
    table += fmt::format("| {} |\n", fmt::join(row, " | "));
    if (&row == &rows.front()) {
      for (size_t i = 0; i < row.size(); ++i) {
        table += "|---";
      }
      table += "|\n";
    }
  }
  return table;
}

}  // namespace lockstep::ds_config
