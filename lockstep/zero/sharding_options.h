// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/zero/bucket/sharded_bucket.h"
#include "lockstep/zero/coordinator/param_coordinator.h"
#include "lockstep/zero/quantize/plus_plus.h"
#include "lockstep/zero_options/offload.h"

namespace lockstep::zero {

/// Parameters that only some of the ranks have in common, such as experts.
struct SubgroupParameters {
  std::vector<at::Tensor> parameters = {};
  Group group = {};  ///< The ranks that have them, among them this one.
};

struct ShardingOptions {
  /// Largest bucket in bytes. Smaller: less memory for gradients in transfer, more messages.
  int64_t cap_bytes = int64_t{25} << 20;
  /// Largest first bucket in bytes, small so that the first message starts early.
  int64_t first_cap_bytes = int64_t{1} << 20;
  bool broadcast_buffers = true;
  /// Sets of parameters, each of which forms a bucket of any size. A bucket has parameters of one
  /// optimizer group; a unit with several groups has a bucket for each.
  std::vector<std::vector<at::Tensor>> units = {};
  /// kSharded is stage 3: ranks unshard parameters only while operations use them.
  ParamPlacement placement = ParamPlacement::kReplicated;
  /// Stage 3: the model itself communicates, also in backward (context or tensor parallelism), so
  /// all ranks run the same operations in the same order. A rank then waits for its buckets without
  /// serving the parameters of other ranks: they may wait for it in one of the model's operations.
  /// Ranks with different control flow hang until the timeout.
  bool model_communicates = false;
  /// Stage 3 does not shard parameters of up to this many elements.
  int64_t param_persistence_threshold = 0;
  /// The limit of the elements of these parameters together, in the order of the parameters.
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
  ParamCoordinatorOptions coordinator = {};
  /// Only for sharded parameters.
  PlusPlusOptions plus_plus = {};
  /// The storage of each rank's shard of sharded parameters.
  OffloadParam offload = {};
  /// The storage of fp32 masters. `offload`, if set, overrides it for sharded parameters. The
  /// rounded masters stay on the bucket's device.
  OffloadParam offload_masters = {};
  LowPrecisionPolicy low_precision_policy = {};
  /// 16-bit communication dtypes of gradients and sharded parameters. These parameters have
  /// separate buckets. Not together with ZeRO++ quantization.
  flat::CommDtypes comm_dtypes = {};
  bool comm_dtypes_for_gradients_only = false;  ///< Parameters are sent in their dtype.
  /// Parameters with separate buckets. Their gradients are averaged, and their updates shared, by
  /// the ranks of their group. Stage 3 does not shard their values.
  SubgroupParameters subgroup = {};
};

/// Throws ConfigError for options that are out of range or contradictory.
void check_options(const ShardingOptions& options);

}  // namespace lockstep::zero
