// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/env_file.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/variable_name.h"
#include "lockstep/launcher/plan/rank_environment.h"
#include "lockstep/launcher/plan/text_position.h"

namespace lockstep::launcher {
namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  return begin == std::string::npos
             ? ""
             : text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

std::string unquoted(const FileLine& line, size_t at) {
  std::string value = trimmed(line.text.substr(at));
  if (value.empty() || (value.front() != '"' && value.front() != '\'')) {
    return value;
  }
  const size_t close = value.find(value.front(), 1);
  if (close == std::string::npos) {
    line.refuse(
        line.text.find(value.front(), at),
        fmt::format("the quote {} is not closed", value.front()));
  }
  if (close + 1 != value.size()) {
    line.refuse(
        line.text.find(value.front(), at) + close + 1,
        "text after the closing quote; expected the end of the line");
  }
  return value.substr(1, close - 1);
}

}  // namespace

std::vector<config::EnvVariable> parse_env_file(const std::string& text, const std::string& file) {
  std::vector<config::EnvVariable> variables;
  for_each_line(text, file, [&](const FileLine& line) {
    size_t begin = line.text.find_first_not_of(kSpaces);
    if (begin == std::string::npos || line.text[begin] == '#') {
      return;
    }
    constexpr std::string_view kExport = "export ";
    if (line.text.compare(begin, kExport.size(), kExport) == 0) {
      begin = line.text.find_first_not_of(kSpaces, begin + kExport.size());
    }
    const size_t equals = line.text.find('=');
    if (begin == std::string::npos || equals == std::string::npos) {
      line.refuse(line.text.find_first_not_of(kSpaces), "has no '='; expected NAME=value");
    }
    const std::string name = line.text.substr(begin, equals - begin);
    if (const std::string fault = variable_fault(name); !fault.empty()) {
      line.refuse(begin, fmt::format("the name '{}' {}", name, fault));
    }
    set_variable(variables, {name, unquoted(line, equals + 1)});
  });
  return variables;
}

std::vector<config::EnvVariable> read_env_files(const std::vector<std::string>& folders) {
  std::vector<config::EnvVariable> all;
  for (const std::string& folder : folders) {
    const std::string file = folder + "/" + kEnvFile;
    if (::access(file.c_str(), F_OK) == 0) {
      for (config::EnvVariable& variable : parse_env_file(read_small_file(file), file)) {
        set_variable(all, std::move(variable));
      }
    }
  }
  return all;
}

std::vector<config::EnvVariable> forwarded_variables(const std::vector<std::string>& inherited) {
  constexpr std::array kPrefixes = {"NCCL", "PYTHON", "MV2", "UCX", "MLFLOW"};
  std::vector<config::EnvVariable> variables;
  for (const std::string& entry : inherited) {
    const size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    const bool is_sent = std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](const char* prefix) {
      return name.starts_with(prefix);
    });
    if (equals != std::string::npos && is_sent && variable_fault(name).empty()) {
      variables.push_back({name, entry.substr(equals + 1)});
    }
  }
  return variables;
}

std::string variable_fault(const std::string& name) {
  if (name.empty()) {
    return "is empty";
  }
  if (!is_variable_name(name)) {
    return "is invalid; expected letters, digits and _, and no digit first";
  }
  if (is_set_by_launcher(name)) {
    return "is set by the launcher itself, for each rank";
  }
  return "";
}

config::EnvVariable parse_env_flag(
    const std::string& text, const std::vector<std::string>& inherited) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (const std::string fault = variable_fault(name); !fault.empty()) {
    throw ConfigError("lockstep launch", fmt::format("--env {}: the name {}", text, fault));
  }
  if (equals != std::string::npos) {
    return {name, text.substr(equals + 1)};
  }
  const auto entry =
      std::find_if(inherited.begin(), inherited.end(), [&](const std::string& candidate) {
        return candidate.starts_with(name + "=");
      });
  if (entry == inherited.end()) {
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "--env {}: no such variable in the environment; try --env {}=value", name, name));
  }
  return {name, entry->substr(name.size() + 1)};
}

}  // namespace lockstep::launcher
