// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/options/options.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/zero/shard_store.h"

namespace lockstep {

/// What a plugin says of parameters of fp16 and bf16, in ZeRO's words.
zero::LowPrecisionPolicy low_precision_policy(const ZeroPlugin& plugin);
/// ConfigError for gradients of `parameters` that cannot add up as they are told to.
void check_sums(const ZeroPlugin& plugin, const NamedTensors& parameters);

}  // namespace lockstep
