// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/env.h"
#include "lockstep/config/document/document.h"
#include "lockstep/config/import/import_accelerate.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::config {

/// Imports `section`, the deepspeed_config of Accelerate's `file`: its values, and those of the
/// DeepSpeed JSON that it names. Returns the mixed precision of that JSON and its position; empty
/// if it sets none. Throws ConfigError for invalid values.
Setting import_deepspeed(
    const Document& file, const Node& section, const Environment& environment, Import& import);

}  // namespace lockstep::config
