// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/config/menu.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::cli {

/// Asks for the settings that differ from one user to the next. `present` is what Enter alone
/// takes, and keeps all that is not asked for. Throws what Menu throws.
config::ConfigValues ask_settings(Menu& menu, config::ConfigValues present);

}  // namespace lockstep::cli
