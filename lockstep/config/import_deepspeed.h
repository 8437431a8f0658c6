// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/env.h"
#include "lockstep/config/document.h"
#include "lockstep/config/import_accelerate.h"
#include "lockstep/config/settings.h"

namespace lockstep::config {

/// Takes over `section`, the deepspeed_config of Accelerate's `file`: values that stand in it, and
/// those of the DeepSpeed JSON that it names. Returns the mixed precision of that JSON and where it
/// stands there; empty if it sets none. ConfigError for what makes no sense.
Setting import_deepspeed(
    const Document& file, const Node& section, const Environment& environment, Import& import);

}  // namespace lockstep::config
