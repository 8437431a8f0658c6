// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cli/common/report.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::cli {

/// Every setting, its value and who said it, as `lockstep config show` and `lockstep env --explain`
/// print it. `file`: the configuration that was read, if there was one.
///
/// As JSON: {"version": 1, "config_file": path or null, "settings": [{"name", "value", "origin",
/// "flag", "variables"}], "env": [{"name", "value", "origin"}]}, in which a value that is not set
/// is null.
Report settings_report(const config::Settings& settings, const std::optional<std::string>& file);

/// That of this process' environment and of the file it finds. `chosen_file`: a --config-file, if
/// there is one. ConfigError as config::read_config and config::resolve.
Report own_settings_report(const std::optional<std::string>& chosen_file);

}  // namespace lockstep::cli
