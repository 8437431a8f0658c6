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
        "ZeRO++ needs ZeRO stage 3; got replicated parameters, expected sharded ones; use stage 3");
  }
  if (!options.comm_dtypes.parameters.empty() &&
      ((options.plus_plus.quantized_weights && !options.comm_dtypes_for_gradients_only) ||
       options.plus_plus.quantized_gradients)) {
    throw ConfigError(
        "zero",
        "ZeRO++ quantization cannot be combined with a 16-bit communication dtype of the same "
        "values; got both; remove one of them");
  }
  if (options.offload.device != OffloadDevice::kNone && !sharded) {
    throw ConfigError(
        "zero",
        "offload_param needs ZeRO stage 3; got replicated parameters, expected sharded ones; use "
        "stage 3");
  }
}

}  // namespace lockstep::zero
