// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/config/menu.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::cli {

/// Asks for each setting whose row has a question. Enter alone keeps the value in `present`;
/// settings without a question keep theirs. Throws as Menu does.
config::ConfigValues ask_settings(Menu& menu, config::ConfigValues present);

}  // namespace lockstep::cli
