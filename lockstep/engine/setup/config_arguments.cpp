// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/config_arguments.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/ds_config/keys/scalar_values.h"

namespace lockstep {

ConfigArguments add_config_arguments(int& argc, char** argv) {
  ConfigArguments found;
  std::vector<char*> rest;
  std::vector<std::string> warnings;
  const std::vector<char*> all(argv, argv + argc);
  bool ended = false;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string_view text = all[i];
    ended = ended || text == "--";
    const size_t equals = text.find('=');
    const std::string name(text.substr(0, equals));
    const bool has_value = equals != std::string_view::npos;
    const bool is_old = name == "--deepscale" || name == "--deepscale_config";
    if (i == 0 || ended || (!is_old && name != "--deepspeed" && name != "--deepspeed_config")) {
      rest.push_back(all[i]);
      continue;
    }
    if (is_old) {
      warnings.push_back(fmt::format(
          "{} is an old name; write --deepspeed{}", name, name == "--deepscale" ? "" : "_config"));
    }
    if (name == "--deepspeed" || name == "--deepscale") {
      if (has_value) {
        throw ConfigError(
            "arguments",
            fmt::format(
                "{0} takes no value; got '{1}', expected {0} alone, or --deepspeed_config FILE",
                name,
                ds_config::shown(std::string(text))));
      }
      found.deepspeed = true;
      continue;
    }
    if (!has_value && i + 1 == all.size()) {
      throw ConfigError(
          "arguments", fmt::format("{} needs a file; write {} ds_config.json", name, name));
    }
    const std::string_view value = has_value ? text.substr(equals + 1) : all[++i];
    if (value.empty()) {
      throw ConfigError("arguments", fmt::format("{} needs a file; got none behind it", name));
    }
    found.deepspeed_config = value;
  }
  for (const std::string& warning : warnings) {
    log_warning(warning);
  }
  std::copy(rest.begin(), rest.end(), argv);
  argc = static_cast<int>(rest.size());
  if (rest.size() < all.size()) {
    argv[rest.size()] = nullptr;
  }
  return found;
}

}  // namespace lockstep
