// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/options/options.h"
#include "lockstep/ds_config/ds_config.h"

namespace lockstep {

/// Applies a ds_config.json's offload sections to the options of an Accelerator; unset values stay
/// unchanged.
void set_offloads(const ds_config::ZeroSection& zero, ZeroPlugin& plugin);

}  // namespace lockstep
