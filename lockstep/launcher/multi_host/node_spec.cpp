// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/node_spec.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

using Json = nlohmann::json;

/// Visits the options that are sent, by name: all except the list of hosts.
template <typename Options, typename Visit>
void for_each_field(Options& options, const Visit& visit) {
  visit("force", options.force);
  visit("master_addr", options.master_addr);
  visit("master_port", options.master_port);
  visit("run_id", options.run_id);
  visit("join_timeout_seconds", options.join_timeout_seconds);
  visit("max_restarts", options.max_restarts);
  visit("restart_backoff_seconds", options.restart_backoff_seconds);
  visit("timeout_seconds", options.timeout_seconds);
  visit("stall_timeout_seconds", options.stall_timeout_seconds);
  visit("grace_seconds", options.grace_seconds);
  visit("signals", options.signals);
  visit("rank_prefix", options.rank_prefix);
  visit("log_dir", options.log_dir);
  visit("redirects", options.redirects);
  visit("tee", options.tee);
  visit("local_ranks_filter", options.local_ranks_filter);
  visit("quiet", options.quiet);
  visit("json", options.json);
  visit("threads_per_rank", options.threads_per_rank);
  visit("cpu_bind", options.cpu_bind);
  visit("resume", options.resume);
  visit("debug", options.debug);
  visit("cpu", options.cpu);
  visit("visible_devices", options.visible_devices);
  visit("mixed_precision", options.mixed_precision);
  visit("gradient_accumulation_steps", options.gradient_accumulation_steps);
  visit("zero_stage", options.zero_stage);
  visit("role", options.role);
}

Json to_json(const JobOptions& options) {
  Json json = Json::object();
  for_each_field(options, [&json](const char* name, const auto& value) { json[name] = value; });
  Json& env = json["env"] = Json::array();
  for (const EnvVariable& variable : options.env) {
    env.push_back({variable.name, variable.value});
  }
  return json;
}

JobOptions options_of(const Json& json) {
  JobOptions options;
  for_each_field(options, [&json](const char* name, auto& value) {
    value = json.at(name).get<std::decay_t<decltype(value)>>();
  });
  for (const Json& variable : json.at("env")) {
    options.env.push_back({variable.at(0).get<std::string>(), variable.at(1).get<std::string>()});
  }
  return options;
}

/// The characters U+0000 to U+00FF in UTF-8.
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
      {"words", spec.words},
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
        .words = json.at("words").get<std::vector<std::string>>(),
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
            "the instructions of `lockstep launch` are invalid; another build may be installed on "
            "this host ({})",
            error.what()));
  }
}

}  // namespace lockstep::launcher
