// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/node_spec.h"

#include <type_traits>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/config/settings/setting_table.h"

namespace lockstep::launcher {
namespace {

using Json = nlohmann::json;

// Encodes options as JSON: CpuBind as its number, a variable as a pair of name and value.
template <typename Value>
Json json_of(const Value& value) {
  return value;
}
Json json_of(const std::vector<config::EnvVariable>& variables) {
  Json json = Json::array();
  for (const config::EnvVariable& variable : variables) {
    json.push_back({variable.name, variable.value});
  }
  return json;
}

template <typename Value>
void read(const Json& json, Value& value) {
  value = json.get<Value>();
}
void read(const Json& json, std::vector<config::EnvVariable>& variables) {
  for (const Json& variable : json) {
    variables.push_back({variable.at(0).get<std::string>(), variable.at(1).get<std::string>()});
  }
}

/// Calls `visit(name, value)` for each option that is sent to other hosts.
template <typename Options, typename Visit>
void for_each_sent(Options& options, const Visit& visit) {
  for (const config::SettingSpec& spec : config::all_flags()) {
    std::visit(
        [&](auto member) {
          if constexpr (!std::is_same_v<decltype(member), std::monostate>) {
            if (spec.is_sent_to_hosts) {
              visit(spec.flag, options.*member);
            }
          }
        },
        spec.member);
  }
}

Json to_json(const config::JobOptions& options) {
  Json json = Json::object();
  for_each_sent(options, [&json](const std::string& name, const auto& value) {
    json[name] = json_of(value);
  });
  return json;
}

config::JobOptions options_of(const Json& json) {
  config::JobOptions options;
  for_each_sent(
      options, [&json](const std::string& name, auto& value) { read(json.at(name), value); });
  return options;
}

/// Encodes each byte as the character U+0000 to U+00FF of that number, in UTF-8.
std::string characters_of(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xc0 | (byte >> 6));
      text += static_cast<char>(0x80 | (byte & 0x3f));
    }
  }
  return text;
}

std::string bytes_of(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool is_first = byte >= 0x80 && i + 1 < text.size();
    bytes += is_first ? static_cast<char>((byte << 6) | (text[++i] & 0x3f)) : text[i];
  }
  return bytes;
}

void convert_strings(Json& json, std::string (*convert)(const std::string&)) {
  if (json.is_string()) {
    json = convert(json.get<std::string>());
  } else if (json.is_structured()) {
    for (Json& part : json) {
      convert_strings(part, convert);
    }
  }
}

}  // namespace

std::string line_of(const NodeSpec& spec) {
  Json hosts = Json::array();
  for (const PlannedHost& host : spec.hosts) {
    hosts.push_back(
        {{"name", host.name},
         {"slots", host.slots},
         {"all_slots", host.all_slots},
         {"first_rank", host.first_rank}});
  }
  Json json = {
      {"token", spec.token},
      {"node", spec.node},
      {"hosts", std::move(hosts)},
      {"options", to_json(spec.options)},
      {"words", spec.command},
      {"kind", spec.kind},
      {"folder", spec.folder}};
  convert_strings(json, characters_of);
  return json.dump(-1, ' ', /*ensure_ascii=*/true);
}

NodeSpec node_spec_of(const std::string& line) {
  try {
    Json json = Json::parse(line);
    convert_strings(json, bytes_of);
    NodeSpec spec{
        .token = json.at("token").get<std::string>(),
        .node = json.at("node").get<int>(),
        .hosts = {},
        .options = options_of(json.at("options")),
        .command = json.at("words").get<std::vector<std::string>>(),
        .kind = json.at("kind").get<ProgramKind>(),
        .folder = json.at("folder").get<std::string>()};
    for (const Json& host : json.at("hosts")) {
      spec.hosts.push_back(
          {.name = host.at("name").get<std::string>(),
           .slots = host.at("slots").get<std::vector<int>>(),
           .all_slots = host.at("all_slots").get<bool>(),
           .first_rank = host.at("first_rank").get<int>()});
    }
    return spec;
  } catch (const Json::exception& error) {
    throw ConfigError(
        "lockstep node",
        fmt::format(
            "the launcher's instructions cannot be read, perhaps because another build sent them; "
            "install the same build of lockstep on all hosts ({})",
            error.what()));
  }
}

}  // namespace lockstep::launcher
