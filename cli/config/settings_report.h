// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cli/common/report.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::cli {

/// Reports every setting, its value and its origin, for `lockstep config show` and `lockstep env
/// --explain`. `file` is the path of the configuration, if one was read.
///
/// JSON: {"version": 1, "config_file": path or null, "settings": [{"name", "value", "origin",
/// "flag", "variables"}], "env": [{"name", "value", "origin"}]}, in which a value that is not set
/// is null.
Report settings_report(const config::Settings& settings, const std::optional<std::string>& file);

/// Reports the settings of this process's environment and configuration file. `chosen_file` is
/// --config-file, if given. Throws ConfigError as config::read_config and config::resolve do.
Report own_settings_report(const std::optional<std::string>& chosen_file);

}  // namespace lockstep::cli
