// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/sharding_options.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::zero {

void check_options(const ShardingOptions& options) {
  if (options.cap_bytes < 1 || options.first_cap_bytes < 1) {
    throw ConfigError(
        "zero",
        fmt::format(
            "a bucket needs at least one byte; got cap_bytes={}, first_cap_bytes={}",
            options.cap_bytes,
            options.first_cap_bytes));
  }
  const bool sharded = options.placement == ParamPlacement::kSharded;
  if (options.plus_plus.any() && !sharded) {
    throw ConfigError(
        "zero",
        "ZeRO++ changes how the parameters of stage 3 are sent; got replicated parameters, "
        "expected sharded ones; use stage 3");
  }
  if (!options.comm_dtypes.parameters.empty() &&
      ((options.plus_plus.quantized_weights && !options.comm_dtypes_for_gradients_only) ||
       options.plus_plus.quantized_gradients)) {
    throw ConfigError(
        "zero",
        "ZeRO++ sends parameters in 8 bits, or gradients in 4; got parameters with a 16-bit "
        "communication dtype, too; leave one of them out");
  }
  if (options.offload.device != OffloadDevice::kNone && !sharded) {
    throw ConfigError(
        "zero",
        "offload_param moves the shards of sharded parameters; got replicated parameters, expected "
        "sharded ones; use stage 3");
  }
}

}  // namespace lockstep::zero
