// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/options/options.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/zero/bucket/low_precision_policy.h"

namespace lockstep {

/// Translates a plugin's settings for fp16 and bf16 parameters into a ZeRO policy.
zero::LowPrecisionPolicy low_precision_policy(const ZeroPlugin& plugin);
/// Throws ConfigError if gradients of `parameters` cannot be accumulated in the requested dtype.
void check_sums(const ZeroPlugin& plugin, const NamedTensors& parameters);

}  // namespace lockstep
