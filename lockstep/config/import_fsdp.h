// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/config/document.h"
#include "lockstep/config/import_accelerate.h"

namespace lockstep::config {

/// Takes over `section`, the fsdp_config of Accelerate's `file`: what is divided becomes
/// zero_stage, as FsdpPlugin has it; the rest is for the program, or always so, and is listed.
/// ConfigError for what makes no sense.
void import_fsdp(const Document& file, const Node& section, Import& import);

}  // namespace lockstep::config
