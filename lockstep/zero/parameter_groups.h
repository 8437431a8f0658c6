// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/zero/bucket/shard_store.h"

namespace lockstep::zero {

/// Returns the trainable parameters of `all` for each of the optimizer `groups`, in their order in
/// `all`. Throws ConfigError for a trainable parameter without a group, and for one of a group that
/// is not in `all`, unless it has no elements. Thread-safe, as all functions here.
std::vector<NamedTensors> by_group(
    const NamedTensors& all, const std::vector<std::vector<at::Tensor>>& groups);

/// Returns the parameters that stage 3 does not shard: each of at most `up_to` elements, trained or
/// not, in order, up to `in_all` elements together. The same ones as DeepSpeed 0.19's
/// mark_persistent_parameters.
std::set<const at::TensorImpl*> persistent_parameters(
    const NamedTensors& all, int64_t up_to, int64_t in_all);

/// Returns the frozen floating-point parameters that stage 3 shards: those not in `kept`. Each
/// once, even if it has several names.
NamedTensors sharded_though_frozen(
    const NamedTensors& all, const std::set<const at::TensorImpl*>& kept);

/// Returns the trained parameters that are updated in another dtype than their own.
NamedTensors with_masters(const NamedTensors& all, const LowPrecisionPolicy& low_precision_policy);

/// Concatenates the lists.
NamedTensors joined(NamedTensors first, const NamedTensors& second);

}  // namespace lockstep::zero
