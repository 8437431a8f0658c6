// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/options/options.h"
#include "lockstep/ds_config/ds_config.h"

namespace lockstep {

/// What a ds_config.json says of offloading, to an Accelerator; what it does not say stays as it
/// is.
void set_offloads(const ds_config::ZeroSection& zero, ZeroPlugin& plugin);

}  // namespace lockstep
