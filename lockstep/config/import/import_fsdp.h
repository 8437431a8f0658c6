// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/config/document/document.h"
#include "lockstep/config/import/import_accelerate.h"

namespace lockstep::config {

/// Imports `section`, the fsdp_config of Accelerate's `file`: the sharding becomes zero_stage, as
/// in FsdpPlugin; other keys, which the program must handle or which always apply, are listed.
/// Throws ConfigError for invalid values.
void import_fsdp(const Document& file, const Node& section, Import& import);

}  // namespace lockstep::config
