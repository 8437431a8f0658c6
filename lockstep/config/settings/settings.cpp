// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/settings/settings.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/words.h"
#include "lockstep/config/document/scalars.h"

namespace lockstep::config {
namespace {

using Kind = Node::Kind;
using Type = SettingType;
using Values = std::map<std::string, Setting>;

/// The values of one source: the flags, the environment, the file, or the defaults.
struct Source {
  Values settings;
  Values variables;
};

std::string kind_name(const Node& node) {
  switch (node.kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
    case Kind::kScalar:
      return fmt::format("'{}'", node.text);
  }
  LOCKSTEP_ASSERT(false, "a kind of node without a name");
}

void refuse_kind(
    const Document& file, const std::string& key, const Node& node, const std::string& expected) {
  const char* const hint = node.kind == Kind::kNull ? "; remove the key to leave it unset" : "";
  throw ConfigError(
      where(file, node.place),
      fmt::format(
          "invalid value for {}; got {}, expected {}{}", key, kind_name(node), expected, hint));
}

bool is_text(Type type) {
  return type == Type::kChoice || type == Type::kPath || type == Type::kText;
}

void read_variables(const Document& file, const Entry& entry, Values& variables) {
  if (entry.value.kind != Kind::kMap) {
    refuse_kind(file, entry.key, entry.value, "a map, like {NCCL_DEBUG: INFO}");
  }
  for (const Entry& variable : entry.value.entries) {
    check_variable_name(variable.key, where(file, variable.place));
    if (variable.value.kind != Kind::kScalar) {
      refuse_kind(file, "env: " + variable.key, variable.value, "text, '' for an empty one");
    }
    variables[variable.key] = {variable.value.text, where(file, variable.place)};
  }
}

void read_entry(const Document& file, const Entry& entry, Source& source) {
  const SettingSpec* const spec = find_setting(entry.key);
  if (spec == nullptr) {
    throw ConfigError(
        where(file, entry.place),
        fmt::format("unknown key '{}'{}", entry.key, did_you_mean(entry.key, setting_names())));
  }
  if (spec->type == Type::kVariables) {
    read_variables(file, entry, source.variables);
    return;
  }
  const Node& node = entry.value;
  if (node.kind != Kind::kScalar) {
    refuse_kind(file, entry.key, node, expected_of(*spec));
  }
  const std::vector<std::string> words = non_integer_choices(*spec);
  const bool is_word = std::find(words.begin(), words.end(), node.text) != words.end();
  if (node.quoted && !is_text(spec->type) && !is_word) {
    throw ConfigError(
        where(file, node.place),
        fmt::format(
            "invalid value for {}; got the text '{}', expected {}; remove the quotes",
            entry.key,
            node.text,
            expected_of(*spec)));
  }
  check_value(*spec, node.text, where(file, node.place), entry.key);
  source.settings[entry.key] = {node.text, where(file, entry.place)};
}

void refuse_root(const Document& file) {
  const Node& root = file.root;
  if (root.kind != Kind::kMap && root.kind != Kind::kNull) {
    throw ConfigError(
        where(file, root.place),
        fmt::format(
            "invalid settings; got {}, expected lines like num_processes: 2", kind_name(root)));
  }
}

Source from_file(const Document& file) {
  refuse_root(file);
  Source source;
  for (const Entry& entry : file.root.entries) {
    read_entry(file, entry, source);
  }
  return source;
}

/// Reads a variable in milliseconds, and returns seconds, the unit of the setting.
std::string in_seconds(const Environment& environment, const std::string& name, int64_t most) {
  const int64_t milliseconds = environment.integer(name, 1, most * 1000).value_or(0);
  std::string text = fmt::format("{}.{:03}", milliseconds / 1000, milliseconds % 1000);
  text.erase(text.find_last_not_of('0') + 1);
  return text.ends_with('.') ? text.substr(0, text.size() - 1) : text;
}

Source from_environment(const Environment& environment) {
  Source source;
  for (const SettingSpec& spec : all_settings()) {
    for (const std::string& name : spec.variables) {
      std::optional<std::string> text = environment.text(name);
      if (!text) {
        continue;
      }
      if (name.ends_with("_MS")) {
        text = in_seconds(environment, name, static_cast<int64_t>(spec.max));
      }
      check_value(spec, *text, "environment", name);
      source.settings[spec.name] = {*text, name};
      break;
    }
  }
  return source;
}

Source from_flags(const std::vector<FlagValue>& flags) {
  Source source;
  for (const FlagValue& flag : flags) {
    const SettingSpec* const spec = find_setting(flag.setting);
    LOCKSTEP_ASSERT(spec != nullptr, "a flag for an unknown setting: " + flag.setting);
    check_value(*spec, flag.value, flag.flag, flag.setting);
    source.settings[flag.setting] = {flag.value, flag.flag};
  }
  return source;
}

Source defaults() {
  Source source;
  for (const SettingSpec& spec : all_settings()) {
    if (spec.type != Type::kVariables) {
      source.settings[spec.name] = {spec.default_value, "default"};
    }
  }
  return source;
}

void check_together(const Settings& settings) {
  const int64_t machines = settings.integer("num_machines").value_or(1);
  const int64_t rank = settings.integer("machine_rank").value_or(0);
  // The reader of the flag checks it, and names it.
  if (rank < machines || settings.at("machine_rank").origin.starts_with("--")) {
    return;
  }
  throw ConfigError(
      settings.at("machine_rank").origin,
      fmt::format(
          "invalid value {} for machine_rank; expected less than num_machines, which is {} ({})",
          rank,
          machines,
          settings.at("num_machines").origin));
}

}  // namespace

const Setting& Settings::at(const std::string& name) const {
  const auto found = settings_.find(name);
  LOCKSTEP_ASSERT(found != settings_.end(), "unknown setting: " + name);
  return found->second;
}

std::optional<int64_t> Settings::integer(const std::string& name) const {
  return integer_value(at(name).text);
}

std::optional<double> Settings::seconds(const std::string& name) const {
  return decimal_number(at(name).text);
}

std::optional<std::string> Settings::text(const std::string& name) const {
  const std::string& text = at(name).text;
  return text.empty() ? std::nullopt : std::optional(text);
}

bool Settings::boolean(const std::string& name) const {
  return truth_value(at(name).text).value_or(false);
}

Settings resolve(
    const std::vector<FlagValue>& flags,
    const Environment& environment,
    const std::optional<Document>& file) {
  std::vector<Source> sources;
  sources.push_back(from_flags(flags));
  sources.push_back(from_environment(environment));
  sources.push_back(file ? from_file(*file) : Source{});
  sources.push_back(defaults());
  Settings settings;
  for (const Source& source : sources) {
    // insert keeps the value of an earlier source.
    settings.settings_.insert(source.settings.begin(), source.settings.end());
    settings.variables_.insert(source.variables.begin(), source.variables.end());
  }
  for (const SettingSpec& spec : all_settings()) {
    if (spec.type == Type::kPath) {
      Setting& setting = settings.settings_[spec.name];
      setting.text = expand_home(setting.text, environment);
    }
  }
  check_together(settings);
  return settings;
}

std::vector<std::string> faults_of(const Document& file) {
  std::vector<std::string> faults;
  const auto note = [&](const auto& check) {
    try {
      check();
    } catch (const ConfigError& error) {
      faults.emplace_back(error.what());
    }
  };
  note([&] { refuse_root(file); });
  Source source;
  for (const Entry& entry : file.root.entries) {
    note([&] { read_entry(file, entry, source); });
  }
  if (faults.empty()) {
    note([&] { resolve({}, Environment::of({{"HOME", "/"}}), file); });
  }
  return faults;
}

ConfigValues values_of(const Document& file) {
  const Source source = from_file(file);
  ConfigValues values;
  for (const auto& [name, setting] : source.settings) {
    values.settings[name] = setting.text;
  }
  for (const auto& [name, setting] : source.variables) {
    values.variables[name] = setting.text;
  }
  return values;
}

std::string expand_home(const std::string& path, const Environment& environment) {
  if (path != "~" && !path.starts_with("~/")) {
    return path;
  }
  const auto home = environment.text("HOME");
  if (!home) {
    throw ConfigError(path, "HOME is not set, so ~ has no value; set HOME, or write the full path");
  }
  return *home + path.substr(1);
}

}  // namespace lockstep::config
